"""The largest numbers that their carriers hold."""

from __future__ import annotations

from typing import Final

INT32_MAX: Final = 2**31 - 1
"""The largest value of gRPC's channel arguments, and within uint32, the type of most numbers in our messages."""
UINT32_MAX: Final = 2**32 - 1
"""The largest token id, and the largest count, of a message."""
UINT64_MAX: Final = 2**64 - 1
"""The largest seed."""
INT64_MAX: Final = 2**63 - 1
"""The largest number of bytes that an allocation can be asked for."""
MOST_SECONDS: Final = INT32_MAX // 1000
"""The longest time: gRPC takes it as an int32 of milliseconds, so it is 24 days."""

"""The numbers that settings hold, each with the bound of what carries it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

INT32_MAX = 2**31 - 1
"""The largest value of gRPC's channel arguments, and within uint32, the type of numbers in our messages."""
INT64_MAX = 2**63 - 1
"""The largest number of bytes that an allocation can be asked for."""

Seconds = Annotated[float, Field(le=INT32_MAX // 1000)]
"""Time in seconds: gRPC takes it as an int32 of milliseconds, so 24 days are the most."""
Milliseconds = Annotated[int, Field(le=INT32_MAX)]
"""Time in whole milliseconds: an int32 in gRPC's channel arguments."""
Duration = Annotated[float, Field(le=INT32_MAX // 1000)]
"""Time in milliseconds or microseconds that a process waits by itself: at most as many of them as Seconds allows."""
Bytes = Annotated[int, Field(le=INT64_MAX)]
"""Memory in bytes."""
Count = Annotated[int, Field(le=INT32_MAX)]
"""Things that are counted: tokens, sessions, requests, layers, processes, nodes."""

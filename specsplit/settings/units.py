"""The numbers that settings hold, each with the bound of what carries it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specsplit.values.bounds import INT32_MAX, INT64_MAX, MOST_SECONDS

Seconds = Annotated[float, Field(le=MOST_SECONDS)]
"""Time in seconds: gRPC takes it as an int32 of milliseconds, so 24 days are the most."""
Milliseconds = Annotated[int, Field(le=INT32_MAX)]
"""Time in whole milliseconds: an int32 in gRPC's channel arguments."""
Duration = Annotated[float, Field(le=MOST_SECONDS)]
"""Time in milliseconds or microseconds that a process waits by itself: at most as many of them as Seconds allows."""
Bytes = Annotated[int, Field(le=INT64_MAX)]
"""Memory in bytes."""
Count = Annotated[int, Field(le=INT32_MAX)]
"""Things that are counted: tokens, sessions, requests, layers, processes, nodes."""

"""A session that is to be decoded on a verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specsplit.observe import TraceContext
from specsplit.sessions import DecodeEvent, DecodeRequest

Take: TypeAlias = Callable[[Sequence[DecodeEvent]], bool]
"""Called with events of a session that came at once, in order; True: it leaves the session. It does not wait."""


async def always_room() -> None:
    """There is room for whatever comes."""


@dataclass(frozen=True, slots=True)
class VerifierSession:
    """What is asked for, and who hears what comes of it."""

    request: DecodeRequest
    take: Take
    room: Callable[[], Awaitable[None]] = always_room
    """Returns when there is room for more of what is told of the prompt."""
    timeout_s: float | None = None
    """None: it has no deadline."""
    trace: TraceContext | None = None
    """Its spans are below this one."""

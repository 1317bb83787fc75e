"""The two directions of a Draft stream: messages as bytes, in order, each so much later."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.lab.events import Timeline


@dataclass(frozen=True)
class Link:
    """What a wire is like, in either direction."""

    delay_ms: float = 0.0
    """The delay in one direction."""
    bytes_per_s: float = math.inf

    def transfer_s(self, num_bytes: int) -> float:
        """Time to put so many bytes on the wire."""
        return num_bytes / self.bytes_per_s


DIRECT = Link()


class Wire:
    """One direction. A message leaves when the one before it is out, and arrives one delay after it has left."""

    def __init__(self, timeline: Timeline, link: Link, arrive: Callable[[bytes], None]) -> None:
        """`arrive` is given every message."""
        self._timeline = timeline
        self._link = link
        self._arrive = arrive
        self._free_at = 0.0
        self.messages = 0
        self.bytes = 0

    def send(self, message: bytes) -> None:
        """Send a message now."""
        self.messages += 1
        self.bytes += len(message)
        begun = max(self._timeline.clock.now(), self._free_at)
        self._free_at = begun + self._link.transfer_s(len(message))
        self._timeline.at(self._free_at + self._link.delay_ms / 1e3, lambda: self._arrive(message))

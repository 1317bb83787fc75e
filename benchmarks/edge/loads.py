"""What a party of the benchmark `edge` is asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

INTERVAL_S: Final = 0.02
SATURATED_S: Final = 0.01
"""Offered where nobody is to keep up: more than any of them passes on with the cores of one machine."""
SATURATED: Final = "saturated"
HALF: Final = "half of that"


class Load(NamedTuple):
    """So many streams, each with a token every so many seconds."""

    streams: int
    every_s: float
    name: str = ""

    @property
    def label(self) -> str:
        """How the table calls it."""
        return f"{self.streams}, {self.name}" if self.name else str(self.streams)

    @property
    def offered(self) -> float:
        """Tokens per second."""
        return self.streams / self.every_s

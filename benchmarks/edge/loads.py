"""What a party of the benchmark `edge` is asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

INTERVAL_S: Final = 0.02
SATURATED_S: Final = 0.01
"""Offered where nobody is to keep up: more than any of them passes on with the cores of one machine."""
SATURATED: Final = "saturated"
HALF: Final = "half of that"
BATCH: Final = 64
"""Sessions of a verifier, at most, where a load is one of several."""
BY_SEVERAL: Final = "by verifiers of 64"
HALF_BY_SEVERAL: Final = f"{HALF}, {BY_SEVERAL}"


class Load(NamedTuple):
    """So many streams, each with a token every so many seconds."""

    streams: int
    every_s: float
    name: str = ""
    verifiers: int = 1
    """So many take turns in stepping, each with its part of the streams. With one, all have their tokens at once."""

    @property
    def label(self) -> str:
        """How the table calls it."""
        return f"{self.streams}, {self.name}" if self.name else str(self.streams)

    @property
    def offered(self) -> float:
        """Tokens per second."""
        return self.streams / self.every_s

    @property
    def step_s(self) -> float:
        """Seconds between two steps, whichever verifiers make them."""
        return self.every_s / self.verifiers

    def by_several(self, name: str) -> Load:
        """The same, of verifiers with BATCH sessions each."""
        return self._replace(name=name, verifiers=-(-self.streams // BATCH))

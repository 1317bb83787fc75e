"""When the waves of a group began and ended, as its rank 0 writes to its log at level debug."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

_WAVE: Final = re.compile(r'"message": "wave (\d+): (begun|parked)')
FAR_S: Final = 3.0
"""A wave does not end so long after its last request."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a rank stood from then on."""

    at: float
    """Seconds since 1970."""
    number: int
    parked: bool


def moments(lines: Iterable[str]) -> Iterator[Moment]:
    """The moments that the lines of a log tell of, if they are about waves."""
    for line in lines:
        if told := _WAVE.search(line):
            at = datetime.fromisoformat(json.loads(line)["time"])
            yield Moment(at.timestamp(), int(told[1]), parked=told[2] == "parked")


def delays(parks: Iterable[float], ends: Sequence[float]) -> list[float]:
    """From the last of the `ends` of requests, in order, before each end of a wave; without those that had another reason."""
    found = [park - ends[at - 1] for park in parks if (at := bisect_right(ends, park))]
    return [each for each in found if each < FAR_S]


@dataclass
class WaveLog:
    """Reads the logs of all incarnations of rank 0 as they are written."""

    folder: Path
    """The folder that torchrun was given as --log-dir."""
    parks: list[float] = field(default_factory=list[float])
    """The moments at which a wave ended."""
    begun: int = 0
    """Waves that have begun."""
    _read: dict[Path, int] = field(default_factory=dict[Path, int])
    _in_wave: dict[Path, int] = field(default_factory=dict[Path, int])
    """The wave that each incarnation is in; -1: none, it is parked."""

    def look(self) -> None:
        """Take in what has been written since the last look."""
        for log in sorted(self.folder.glob("**/attempt_*/0/stderr.log")):
            with log.open("rb") as written:
                written.seek(self._read.get(log, 0))
                whole, end, _ = written.read().rpartition(b"\n")
            self._read[log] = self._read.get(log, 0) + len(whole) + len(end)
            for moment in moments(whole.decode(errors="replace").splitlines()):
                self._take(log, moment)

    def _take(self, log: Path, moment: Moment) -> None:
        before = self._in_wave.get(log, -1)
        if moment.parked and before >= 0:
            self.parks.append(moment.at)
        if not moment.parked and moment.number != before:
            self.begun += 1
        if not moment.parked and before >= 0 and moment.number != before:  # a wave behind the other without a rest
            self.parks.append(moment.at)
        self._in_wave[log] = -1 if moment.parked else moment.number

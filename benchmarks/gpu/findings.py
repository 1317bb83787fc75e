"""What a part of the benchmark finds out. Every line is written when it is known, so that a part which is stopped keeps what it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.spread import spread


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, measured."""

    part: str
    what: str
    """What it is of: a target, a drafter."""
    name: str
    value: float
    unit: str = ""
    low: float | None = None
    """First quartile of the repeats; None: it was measured once."""
    high: float | None = None
    """Third quartile of the repeats."""
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured."""

    part: str
    what: str
    why: str
    broke: bool = False
    """True: it was begun, and ended with an error or was stopped. False: it was left out, or its time was over."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one kernel takes of a step, all its launches together."""

    name: str
    kind: str
    count: int
    us: float
    share: float
    """Of the time of all kernels."""


@dataclass
class Findings:
    """What one part, or several, have found."""

    part: str = ""
    figures: list[Figure] = field(default_factory=list)
    skips: list[Skipped] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """What one must know to read the figures: hardware, versions, which attention was used."""
    kernels: list[Kernel] = field(default_factory=list)
    """Those of a step, the one that takes most first."""
    tell: Callable[[str, object], None] = lambda kind, found: None
    """Called with each of them: "figure", "skipped", "kernel" or "fact"."""

    def figure(self, what: str, name: str, value: float, unit: str = "") -> None:
        """Keep a number that was measured once, or counted."""
        self._keep(Figure(self.part, what, name, value, unit))

    def figures_of(self, what: str, name: str, values: Sequence[float], unit: str = "") -> None:
        """Keep the median and the quartiles of repeats, at least one."""
        found = spread(values)
        self._keep(Figure(self.part, what, name, found.median, unit, found.low, found.high, found.repeats))

    def skipped(self, what: str, why: str, *, broke: bool = False) -> None:
        """Say what is not measured, and why."""
        skip = Skipped(self.part, what, why, broke)
        self.skips.append(skip)
        self.tell("skipped", asdict(skip))

    def fact(self, name: str, value: object) -> None:
        """Keep something that is no measurement."""
        self.facts[name] = value
        self.tell("fact", {name: value})

    def kernel(self, found: Kernel) -> None:
        """Keep what a kernel takes."""
        self.kernels.append(found)
        self.tell("kernel", asdict(found))

    def add(self, found: Findings) -> None:
        """Take over what another part has found."""
        self.figures += found.figures
        self.kernels += found.kernels
        self.skips += found.skips
        self.facts |= found.facts

    def find(self, part: str, what: str, name: str) -> Figure | None:
        """Look a figure up."""
        return next((each for each in self.figures if (each.part, each.what, each.name) == (part, what, name)), None)

    def take(self, lines: Sequence[str]) -> None:
        """Keep what another process wrote with `writing_to`. A last line that was cut off is left out."""
        for line in lines:
            try:
                kind, found = json.loads(line)
            except ValueError:
                continue
            self._take(kind, found)

    def _take(self, kind: str, found: dict[str, Any]) -> None:
        match kind:
            case "figure":
                self._keep(Figure(**found))
            case "skipped":
                self.skips.append(Skipped(**found))
            case "kernel":
                self.kernel(Kernel(**found))
            case _:
                self.facts |= found

    def _keep(self, figure: Figure) -> None:
        self.figures.append(figure)
        self.tell("figure", asdict(figure))

    @classmethod
    def writing_to(cls, path: Path, part: str) -> Self:
        """Findings that are appended to a file, a line of JSON each, as they come."""

        def tell(kind: str, found: object) -> None:
            with path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([kind, found]) + "\n")

        return cls(part, tell=tell)

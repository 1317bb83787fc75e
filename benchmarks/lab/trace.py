"""Recorded acceptance: what a drafter said along the text that a target wrote, without either model (README.md has the format)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

FORMAT = "specsplit-acceptance-1"


@dataclass(frozen=True)
class Level:
    """What the drafter said behind the right token of one depth."""

    rank: int
    """The place of the target's token among the children, from 0; -1: it is not among them."""
    probabilities: tuple[float, ...]
    """The drafter's own, of every child, likeliest first."""


@dataclass(frozen=True)
class Header:
    """What the whole trace is of."""

    target: str
    drafter: str
    kind: str
    by_depth: bool
    """True if what is said of a token depends on how far it is from the root, as with a head."""
    temperature: float = 0.0


@dataclass(frozen=True)
class Trace:
    """The requests of one target and one drafter."""

    header: Header
    requests: Sequence[Mapping[int, Sequence[Level]]]
    """The levels of every request, by position of the root and then by depth below it, first the root's own children."""

    @classmethod
    def read(cls, file: Path) -> Trace:
        """Read a trace. Raises ValueError, naming the line, for one that is not as README.md says."""
        lines = [_parsed(number, line) for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip()]
        if not lines or lines[0].pop("format", None) != FORMAT:
            raise ValueError(f"{file} is no trace: its first line has no format {FORMAT!r}")
        rows: dict[str, dict[int, dict[str, Any]]] = {}
        for number, line in enumerate(lines[1:], 2):
            try:
                rows.setdefault(str(line["request"]), {})[int(line["position"])] = line
            except KeyError as error:
                raise ValueError(f"line {number} of {file} has no {error}") from error
        first = first_choices([line for of_request in rows.values() for line in of_request.values()])
        requests = [{p: _levels(line, first) for p, line in sorted(found.items())} for found in rows.values()]
        for name, found in zip(rows, requests, strict=True):
            if any(after != before + 1 for before, after in pairwise(found)):
                raise ValueError(
                    f"request {name} of {file} lacks positions: there must be a line for each, without a gap"
                )
        return cls(Header(**lines[0]), requests)

    def level(self, request: int, root: int, depth: int) -> Level:
        """What was said of the children of the right token so deep below a root (0: of the root's own)."""
        found = self.requests[request]
        if depth < len(found[root]):
            return found[root][depth]
        if not self.header.by_depth and root + depth in found:
            return found[root + depth][0]
        return Level(-1, found[root][-1].probabilities if root + depth in found else ())


def write(file: Path, header: Header, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a trace."""
    lines = [{"format": FORMAT, **vars(header)}, *rows]
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def row(request: str, position: int, levels: Sequence[Level]) -> dict[str, object]:
    """The line of one root."""
    accepted = [0]
    for depth, level in enumerate(levels, 1):
        accepted.append(accepted[-1] + (level.rank == 0 and accepted[-1] == depth - 1))
    return {
        "request": request,
        "position": position,
        "accepted": accepted[1:],
        "ranks": [level.rank for level in levels],
        "probabilities": [level.probabilities for level in levels],
    }


def first_choices(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """By depth, how often the first choice was right where all above it were."""
    deepest = max((len(line["accepted"]) for line in lines), default=0)
    found: list[float] = []
    for depth in range(1, deepest + 1):
        tried = [
            line["accepted"][depth - 1]
            for line in lines
            if len(line["accepted"]) >= depth > 0 and _reached(line, depth)
        ]
        found.append(sum(length == depth for length in tried) / len(tried) if tried else 0.0)
    return found


def _reached(line: Mapping[str, Any], depth: int) -> bool:
    return depth == 1 or line["accepted"][depth - 2] == depth - 1


def _levels(line: Mapping[str, Any], first: Sequence[float]) -> list[Level]:
    """The levels as recorded; without ranks a chain of first choices, each as likely as first choices are at its depth."""
    if "ranks" in line:
        return [Level(rank, tuple(p)) for rank, p in zip(line["ranks"], line["probabilities"], strict=True)]
    levels = [
        Level(0 if length == depth else -1, (first[depth - 1],)) for depth, length in enumerate(line["accepted"], 1)
    ]
    return levels[: next((i + 1 for i, level in enumerate(levels) if level.rank < 0), len(levels))]


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is no JSON: {error}") from error

"""What a part of a run found: rows for the table, and what must not be."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.report import Row


@dataclass
class Findings:
    """What one part has found."""

    part: str
    rows: list[Row] = field(default_factory=list[Row])
    faults: list[str] = field(default_factory=list[str])
    """A sentence on each thing that must not be."""

    def add(self, what: str, count: object, aim: str = "") -> None:
        """One more row; `aim` says what it ought to be."""
        self.rows.append({"part": self.part, "what": what, "count": count, "aim": aim})

    def must_be_none(self, what: str, found: list[str]) -> None:
        """A row with how many there are; each of them is a fault."""
        self.add(what, len(found), "0")
        self.faults += [f"{self.part}: {what}: {each}" for each in found]

    def at_least(self, what: str, count: int, least: int) -> None:
        """A row with a number; fewer than `least` are a fault, since then too little was tried for the rest to mean anything."""
        self.add(what, count, f"at least {least}")
        if count < least:
            self.faults.append(f"{self.part}: {what}: {count}, expected at least {least}")

    @property
    def sound(self) -> bool:
        """True if nothing was found that must not be."""
        return not self.faults

"""Counts that are taken now and then, by whoever tells of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(slots=True)
class Counters:
    """Counts since they were last taken. Every field has a default, from which it counts."""

    def take(self) -> Self:
        """The counts so far; they begin anew."""
        taken = replace(self)
        self.__init__()
        return taken

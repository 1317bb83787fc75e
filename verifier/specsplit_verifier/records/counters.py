"""Counts that are taken now and then, by whoever tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(slots=True)
class Counters:
    """Counts since they were last taken. Every field has a default, from which it counts; who adds fields has slots too."""

    def take(self) -> Self:
        """The counts so far; they begin anew."""
        taken = type(self)(*[getattr(self, name) for name in self.__slots__])
        self.__init__()
        return taken

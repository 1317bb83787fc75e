"""One thing that a hostile party does, named so that it can be done again alone."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """The seed of the run, which party it is, and a number: from these follows every byte that it sends."""

    seed: int
    party: str
    number: int

    @classmethod
    def named(cls, seed: int, name: str) -> Case:
        """The one of this name, as `--only` takes it. Raises ValueError if it is none."""
        party, _, number = name.partition(":")
        return cls(seed, party, int(number))

    @property
    def name(self) -> str:
        """What `--only` takes."""
        return f"{self.party}:{self.number}"

    def chance(self) -> random.Random:
        """The source of all that is drawn for it, from its beginning."""
        return random.Random(f"{self.seed} {self.name}")

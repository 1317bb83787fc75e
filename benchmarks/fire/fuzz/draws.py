"""Cases, and what is drawn for them from strategies of Hypothesis, outside of its tests: it follows from a source of chance alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
_TRIES: Final = 100
_BYTES: Final = 8 * 1024
"""Bytes that one draw is given. Hypothesis refuses one that takes more, and so a value that large; then another one is drawn."""
COORDINATOR: Final = "coordinator"
"""The party whose cases are drawn when a member joins it."""
WEIGHTS: Final = {"client": 14.0, "drafter": 4.0, "verifier": 1.0, "answers": 0.5, "noise": 0.5, COORDINATOR: 0.0}
"""How often each party acts."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a hostile party does: from the seed of the run, its party and its number follows all that is drawn for it."""

    seed: int
    party: str
    number: int

    @classmethod
    def named(cls, seed: int, name: str) -> Case:
        """The one of this name, as `--only` takes it. Raises ValueError if it is none."""
        party, _, number = name.partition(":")
        if party not in WEIGHTS or not number.isdecimal():
            raise ValueError(f"{name!r} is no case, expected one of {', '.join(WEIGHTS)}, a colon and a number")
        return cls(seed, party, int(number))

    @property
    def name(self) -> str:
        """What `--only` takes."""
        return f"{self.party}:{self.number}"

    def draws(self) -> Draws:
        """All that is drawn for it, from its beginning."""
        return Draws(random.Random(f"{self.seed} {self.name}"))


class Draws:
    """Values of strategies, one after the other, all by one source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def __call__(self, strategy: SearchStrategy[T]) -> T:
        """Draw one value, by the entry that Hypothesis has for fuzzers: it keeps no database, and nothing of earlier draws."""
        _wanted.append(strategy)
        try:
            for _ in range(_TRIES):
                if _target(self.chance.randbytes(_BYTES)) is not None:
                    return _found.pop()
                _found.clear()
            raise RuntimeError(f"{strategy} gave nothing that fits into {_BYTES:,} bytes, {_TRIES} times over")
        finally:
            _wanted.pop()


_wanted: list[SearchStrategy[Any]] = []
_found: list[Any] = []


@st.composite
def _whatever(draw: st.DrawFn) -> Any:
    """What is wanted now: one target for all strategies, since it takes long to make one."""
    return draw(_wanted[-1])


@settings(database=None)
@given(_whatever())
def _take(value: Any) -> None:
    _found.append(value)


_target: Any = _take.hypothesis.fuzz_one_input  # pyright: ignore[reportFunctionMemberAccess]

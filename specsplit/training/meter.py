"""How far a long job is, as whoever shows it is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias


class Meter(Protocol):
    """What a job tells of itself."""

    def __call__(self, done: float, total: float, note: str = "", /) -> None:
        """So much of so much is done."""
        ...


Metering: TypeAlias = Callable[[str], AbstractContextManager[Meter]]
"""Shows a job, under a title, while inside."""


def unmetered(done: float, total: float, note: str = "", /) -> None:
    """Show nothing."""

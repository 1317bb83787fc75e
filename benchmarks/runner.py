"""How a benchmark begins, and how what it compares is run: side by side and over and over."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks.context import Context
from benchmarks.machine import describe

_Cell = TypeVar("_Cell")

OPTIONS: dict[str, dict[str, Any]] = {
    "--quick": {"action": "store_true", "help": "a small run that shows it works; results go to build/results"},
    "--docs": {"action": "store_true", "help": "write to docs/results in the place of build/results"},
    "--models": {"type": Path, "default": Path("models/pocket"), "help": "folder with target and drafts"},
}
"""What several benchmarks take."""


def parser_of(name: str, about: str | None, *options: str) -> argparse.ArgumentParser:
    """A parser for a benchmark, with these of OPTIONS."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}".rstrip(), description=about)
    for option in options:
        parser.add_argument(option, **OPTIONS[option])
    return parser


def begun(words: Sequence[str], console: Console, *, quick: bool, models: Path = Path()) -> Context:
    """What a benchmark is given that was asked for with these words, its name among them."""
    return Context(models, quick, describe(["python -m benchmarks", *words]), console)


def rounds(
    context: Context,
    what: str,
    cells: Sequence[_Cell],
    repeats: int,
    told: Callable[[_Cell], str] = str,
    *,
    back_and_forth: bool = False,
) -> Iterator[tuple[_Cell, int]]:
    """Every cell, and the round that it is for: round 0 warms up, and `repeats` more count.

    Cells take turns in every round, so that a change of the machine's mood meets all alike; `back_and_forth`: every other round in the
    opposite order.
    """
    with context.progress(what, len(cells) * (repeats + 1)) as advance:
        for repeat in range(repeats + 1):
            for cell in reversed(cells) if back_and_forth and repeat % 2 == 0 else cells:
                yield cell, repeat
                advance(told(cell))

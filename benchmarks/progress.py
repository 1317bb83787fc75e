"""How far a long run is: a bar on a terminal, and a line now and then where the output is a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0

Advance: TypeAlias = Callable[[str], None]
"""Tells that one piece is done, with a word on what comes next."""


@contextmanager
def progress(
    console: Console, what: str, total: int, clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:  # fmt: skip
    """Show how many of `total` pieces are done; call what it yields after each.

    `clock` gives seconds. A line is printed at most every `LINE_EVERY_S`, and after the last piece.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bars:
            task = bars.add_task(what, total=total)
            yield lambda word: bars.update(task, advance=1, description=f"{what} {word}")
    else:
        yield _lines(console, what, total, clock)


def _lines(console: Console, what: str, total: int, clock: Callable[[], float]) -> Advance:
    started = told = clock()
    done = 0

    def advance(word: str) -> None:
        nonlocal done, told
        done += 1
        now = clock()
        if done == total or now - told >= LINE_EVERY_S:
            told = now
            console.print(f"{what} {word}: {done}/{total}, {now - started:.0f} s", highlight=False, markup=False)

    return advance

"""How far a long job is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from specsplit.cli.screen import Screen
from specsplit.training.meter import Meter

_LINE_EVERY_S: Final = 10.0


@contextmanager
def metering(title: str, stream: TextIO | None = None) -> Iterator[Meter]:
    """Show a job, under a title, while inside: on stderr, or on another stream."""
    shown = sys.stderr if stream is None else stream
    if shown.isatty():
        with _bar(title, shown) as meter:
            yield meter
    else:
        yield _Lines(title, shown)


@contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[Meter]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Screen(stream)) as progress:
        task = progress.add_task(title, note="")

        def meter(done: float, total: float, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note)

        yield meter


class _Lines:
    """A line at the first word, at the end, and every ten seconds between."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title: Final = title
        self._stream: Final = stream
        self._begun: Final = time.monotonic()
        self._told: float | None = None

    def __call__(self, done: float, total: float, note: str = "", /) -> None:
        now = time.monotonic()
        if self._told is not None and done < total and now - self._told < _LINE_EVERY_S:
            return
        self._told = now
        left = (now - self._begun) / done * (total - done) if done else None
        rest = "" if left is None or done >= total else f", {left / 60:.1f} min left"
        self._stream.write(f"{self._title}: {done:,.0f} of {total:,.0f}{rest}{f'; {note}' if note else ''}\n")
        self._stream.flush()

"""Tables that fit the screen: the columns that matter least go first, and what is left is never folded or cut for want of width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from specsplit.cli.screen import text
from specsplit.errors import printable

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])
NOTHING = "-"
"""A cell for what is not there."""
_NAMED = 3
"""Names that a line lists; others are counted."""
_AROUND = 3
"""Columns of the screen that a table's column takes beside what stands in it: a line and two spaces."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table whose rows are made of T."""

    heading: str
    means: str
    """For the glossary."""
    rank: int
    """How soon it goes where there is no room: the greatest first; the lowest never."""
    cell: Callable[[T], str]
    right: bool = True

    def width(self, rows: Sequence[T]) -> int:
        """The columns of the screen that it needs, with its heading in several lines."""
        words = [*self.heading.split(), *(printable(self.cell(row)) for row in rows)]
        return max(map(cell_len, words))


@dataclass(frozen=True)
class Fitted(Generic[T]):
    """A table that is drawn as wide as there is room. A column without anything in it is left out."""

    title: str
    columns: Sequence[Column[T]]
    rows: Sequence[T]
    caption: str = ""
    most_rows: int | None = None
    """More are counted and not drawn."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich with the width that there is."""
        rows = self.rows[: self.most_rows]
        filled = [each for each in self.columns if any(each.cell(row) != NOTHING for row in rows) or not rows]
        shown = fitting(filled, rows, options.max_width)
        drawn = Table()
        for each in shown:
            heading = text("\n".join(textwrap.wrap(each.heading, each.width(rows))))
            drawn.add_column(heading, justify="right" if each.right else "left", overflow="fold")
        for row in rows:
            drawn.add_row(*(each.cell(row) for each in shown))
        yield self.title  # not the table's own: they would be folded into its width
        yield drawn
        yield from self._notes(rows, [each for each in filled if each not in shown])

    def _notes(self, rows: Sequence[T], left_out: Sequence[Column[T]]) -> Iterator[str]:
        if len(rows) < len(self.rows):
            yield f"and {len(self.rows) - len(rows)} more rows: --once shows all"
        if left_out:
            yield f"no room for: {', '.join(each.heading for each in left_out)}"
        if self.caption:
            yield self.caption


def fitting(columns: Sequence[Column[T]], rows: Sequence[T], width: int) -> list[Column[T]]:
    """The columns that fit into so many columns of the screen, in the order given; at least one."""
    kept = list(columns)
    while len(kept) > 1 and sum(each.width(rows) + _AROUND for each in kept) + 1 > width:
        kept.remove(max(kept, key=lambda each: each.rank))
    return kept


def named(names: Sequence[str]) -> str:
    """The names in a row; of many the first ones, and how many more there are."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def glossary(name: str, columns: Sequence[Column[Any]]) -> str:
    """What the columns of a table mean, in one paragraph."""
    return f"Columns of {name}: " + "; ".join(f"{each.heading}: {each.means}" for each in columns) + "."


def explained(**tables: Sequence[Column[Any]]) -> Callable[[Command], Command]:
    """Put what the columns mean below what --help says of a command."""

    def explain(command: Command) -> Command:
        paragraphs = [cleandoc(command.__doc__ or ""), *(glossary(*table) for table in tables.items())]
        command.__doc__ = "\n\n".join(paragraphs)
        return command

    return explain

"""The console of every command: what it is given is data, and neither markup nor an order to the terminal."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from specsplit.errors import printable

WIDE = 180
"""Columns of a table that goes to a file or a pipe."""


class Screen(Console):
    """Prints strings as they are, in tables too. Colour is given with `text`."""

    def __init__(self, file: IO[str] | None = None, width: int | None = None) -> None:
        """Onto stdout unless a file is given, as wide as the terminal or COLUMNS; `width` is for what has neither."""
        known = file is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
        super().__init__(file=file, width=None if known else width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Make what is printed of any string, a table's cells and titles included: rich calls this for all of them."""
        return super().render_str(printable(text), **{**how, "markup": False, "emoji": False})


def text(given: str, style: str = "") -> Text:
    """Several lines of somebody's text, or one in a style."""
    return Text(printable(given, "\n\t\r"), style, tab_size=4)


def joined(*parts: Text | str) -> Text:
    """Put parts that have styles of their own into one line."""
    return Text.assemble(*(printable(part) if isinstance(part, str) else part for part in parts))

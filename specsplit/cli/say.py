"""Lines that commands print."""

from __future__ import annotations

import typer

from specsplit.errors import printable


def say(line: str, *, err: bool = False) -> None:
    """Print one line, on stdout or stderr. What others wrote of it gives the terminal no orders."""
    typer.echo(printable(line, "\t"), err=err)

"""Every command under one name."""

from __future__ import annotations

from typing import Any

import typer

from specsplit.cli.commands import PLACES, Commands
from specsplit.cli.failures import OneLineGroup


class Root(OneLineGroup):
    """The group of all commands; it imports the code of the one that is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Name all, without an import."""
        return list(PLACES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list in --help, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.line) for name, place in PLACES.items()])


app = typer.Typer(
    name="specsplit",
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def specsplit() -> None:
    """Speculative decoding of large language models, split into services."""

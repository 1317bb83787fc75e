"""Every command under one name."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer

from specsplit.cli.commands import ENTRIES, Commands
from specsplit.cli.failures import OneLineGroup
from specsplit.cli.say import say


class Root(OneLineGroup):
    """The group of all commands; it imports the code of the one that is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Name all, without an import."""
        return list(ENTRIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list in --help, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.line) for name, entry in ENTRIES.items()])


app = typer.Typer(
    name="specsplit",
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    """Say which specsplit this is, and leave."""
    if asked:
        from specsplit.build import PROTOCOL, build  # noqa: PLC0415 (no other command asks)

        say(f"specsplit {build()}")
        say(f"Python {platform.python_version()}, protocol {PROTOCOL}")
        raise typer.Exit


@app.callback()
def specsplit(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and the build, and exit."
        ),
    ] = False,
) -> None:
    """Speculative decoding of large language models, split into services."""

"""A command imports its own code and no other's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
import typer.main

from specsplit.cli import app
from specsplit.cli.commands import PLACES

COMMANDS = cast("Any", typer.main.get_command(app)).commands
_LOADED = "import sys; from specsplit.cli import app; app({}, prog_name='specsplit', standalone_mode=False); print(*sys.modules)"


def loaded(*arguments: str) -> set[str]:
    """The modules that a process has once it has run a command."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(list(arguments))], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", PLACES)
def test_what_help_says_of_a_command_without_importing_it_is_the_first_sentence_of_its_own_help(name: str) -> None:
    assert PLACES[name].line == COMMANDS[name].get_short_help_str(1000)


def test_the_list_of_commands_imports_none_of_them() -> None:
    modules = loaded("--help")
    assert not {f"specsplit.cli.{place.module}" for place in PLACES.values()} & modules
    assert not {"grpc", "pydantic", "rich", "structlog", "specsplit.client"} & modules


@pytest.mark.parametrize(
    "arguments", [("-h",), ("serve", "-h"), ("serve", "verifier", "-h"), *((name, "-h") for name in PLACES)]
)
def test_help_has_a_short_option_everywhere(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    app(list(arguments), prog_name="specsplit", standalone_mode=False)
    assert "-h, --help" in capsys.readouterr().out

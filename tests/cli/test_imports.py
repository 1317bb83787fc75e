"""A command imports its own code and no other's."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from specsplit import __version__
from specsplit.build import build
from specsplit.cli import app
from specsplit.cli.commands import ENTRIES

COMMANDS = cast("Any", typer.main.get_command(app)).commands
_LOADED = """
import sys
from specsplit.cli import app
try:
    app({}, prog_name="specsplit")
except SystemExit:
    print(*sys.modules)
"""


def loaded(*arguments: str) -> set[str]:
    """The modules that a process has once it has run a command."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(list(arguments))], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", ENTRIES)
def test_what_help_says_of_a_command_without_importing_it_is_the_first_sentence_of_its_own_help(name: str) -> None:
    assert ENTRIES[name].line == COMMANDS[name].get_short_help_str(1000)


def test_the_list_of_commands_imports_none_of_them() -> None:
    modules = loaded("--help")
    assert not {f"specsplit.cli.{place.module}" for place in ENTRIES.values()} & modules
    assert not {"grpc", "pydantic", "rich", "structlog", "specsplit.client"} & modules


@pytest.mark.parametrize(
    "arguments", [("-h",), ("serve", "-h"), ("serve", "verifier", "-h"), *((name, "-h") for name in ENTRIES)]
)
def test_help_has_a_short_option_everywhere(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    app(list(arguments), prog_name="specsplit", standalone_mode=False)
    assert "-h, --help" in capsys.readouterr().out


def test_a_health_check_imports_what_grpc_and_the_command_line_need_and_no_more() -> None:
    modules = loaded("health", "127.0.0.1:1")
    own = {".".join(name.split(".")[1:3]) for name in modules if name.startswith("specsplit.")}
    assert own - {"values." + name for name in _names("values")} == _HEALTH
    assert not {"aiohttp", "jinja2", "numpy", "prometheus_client", "pydantic_settings", "rich", "structlog"} & modules


def test_the_version_imports_nothing_but_the_command_line() -> None:
    modules = loaded("--version")
    assert {name for name in modules if name.startswith("specsplit.")} == {f"specsplit.{name}" for name in _VERSION}
    assert not {"grpc", "rich"} & modules


def _names(package: str) -> list[str]:
    return [path.stem for path in Path("specsplit", package).glob("*.py")]


_FRAME = {"cli", "cli.app", "cli.commands", "cli.failures", "cli.say", "cli.streams", "errors"}
_VERSION = _FRAME | {"build"}
_DIALLING = (
    "callers",
    "catalogue",
    "certificates",
    "channel",
    "edge",
    "health",
    "hints",
    "names",
    "options",
    "permissions",
    "reloading",
)
_HEALTH = {
    *_FRAME, "cli.health", "cli.options", "features", "identity", "lazy", "observe", "observe.record", "prefix", "rpc",
    *(f"rpc.{name}" for name in _DIALLING), "settings", "settings.address", "settings.addresses", "settings.dialling",
    "settings.files",
    "settings.toml", "values", "wire",
    "wire.limits", "wire.reading", "wire.scan",
}  # fmt: skip
"""Every container makes a health check every ten seconds: whatever is added here costs all of them, all the time."""


def test_the_version_says_the_build_the_interpreter_and_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        app(["--version"], prog_name="specsplit")
    assert left.value.code == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"specsplit {build()}"
    assert second == f"Python {platform.python_version()}, protocol specsplit.v1"
    assert build().startswith(__version__)

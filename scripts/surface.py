"""What others may rely on: public names of the packages, CLI options, what the wheel puts on the path.

Run it to write tests/house/surface.txt afresh after a change on purpose; a test compares.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import typer
import typer.core
import typer.main

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "tests" / "house" / "surface.txt"
PACKAGES = (
    "specsplit.errors",
    "specsplit.values",
    "specsplit.features",
    "specsplit.tree",
    "specsplit.clock",
    "specsplit.membership",
    "specsplit.sessions",
    "specsplit.requests",
    "specsplit.settings",
    "specsplit.speculation",
    "specsplit.wire.cluster",
    "specsplit.wire.common",
    "specsplit.wire.coordinator",
    "specsplit.wire.drafter",
    "specsplit.wire.limits",
    "specsplit.wire.verifier",
    "specsplit.text",
    "specsplit.sampling",
    "specsplit.model",
    "specsplit.rpc",
    "specsplit.observe",
    "specsplit.client",
)


class Command(Protocol):
    """A command of typer, whichever click it stands on."""

    params: list[Any]


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or else the classes and functions that the module itself defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    defined = (
        (name, value) for name, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)
    )
    return sorted(name for name, value in defined if not name.startswith("_") and value.__module__ == module.__name__)


def cli_options(command: Command, path: str) -> Iterator[str]:
    """One line per option or argument, commands below included."""
    for parameter in command.params:
        yield f"cli {path} {'/'.join([*parameter.opts, *parameter.secondary_opts])}"
    if isinstance(command, typer.core.TyperGroup):
        for name, inner in command.commands.items():
            yield from cli_options(inner, f"{path} {name}")


def surface() -> list[str]:
    """Every line of the snapshot, sorted."""
    lines = [
        f"name {package}.{name}" for package in PACKAGES for name in public_names(importlib.import_module(package))
    ]
    app: typer.Typer = importlib.import_module("specsplit.cli").app
    lines += cli_options(typer.main.get_command(app), "specsplit")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines += [f"wheel {Path(each).name}" for each in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    lines += [f"script {name}" for name in project["project"]["scripts"]]
    return sorted(lines)


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(surface()) + "\n")
    sys.stdout.write(f"surface: wrote {SNAPSHOT.relative_to(ROOT)}\n")

"""Every command by name: where its code is, and what `specsplit --help` says of it. A command's code is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import typer


@dataclass(frozen=True)
class CommandEntry:
    """Where the code of a command is."""

    module: str
    """Below specsplit.cli."""
    name: str
    """A function, or a Typer of several commands."""
    line: str
    """What the command does, in one line: the first sentence of its own help, which nobody has to import for it."""


ENTRIES: Mapping[str, CommandEntry] = MappingProxyType(
    {
        "demo": CommandEntry(
            "demo",
            "demo",
            "Start three services on this machine, generate with a drafter and without, and compare.",
        ),
        "up": CommandEntry("up", "up", "Run a coordinator, verifiers and drafters on this machine until Ctrl-C."),
        "serve": CommandEntry("serve", "serve_app", "Run one service in this process until SIGTERM or Ctrl-C."),
        "generate": CommandEntry("generate", "generate", "Continue a text."),
        "chat": CommandEntry(
            "chat", "chat", "Talk with the model of a running cluster: what was said is sent with every question."
        ),
        "train-head": CommandEntry(
            "train_head", "train_head", "Train a draft head for a target, on texts that the target writes itself."
        ),
        "status": CommandEntry("status", "status", "Show the cluster: members, load, requests."),
        "plan": CommandEntry(
            "plan",
            "plan",
            "Change the plan of every verifier, and its controller, from the next step on; without options show what is in "
            "force, and why.",
        ),
        "trace": CommandEntry(
            "trace", "trace", "Change what every service traces, from now on; without options show what is changed."
        ),
        "update-weights": CommandEntry(
            "update_weights",
            "update_weights",
            "Have verifiers, or drafters, go on with other weights of their model, without a restart; exit 0 if all of them do, else 1.",
        ),
        "health": CommandEntry(
            "health",
            "health",
            "Ask services whether they take calls: one line each, and exit 0 if all say SERVING, else 1.",
        ),
        "tokens": CommandEntry(
            "tokens", "tokens", "Draw tokens for callers, and the file by which services know them."
        ),
    }
)


class Commands(Mapping[str, Any]):
    """The commands of typer by name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, ENTRIES[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


def _make(name: str, entry: CommandEntry) -> Any:
    found = getattr(import_module(f"specsplit.cli.{entry.module}"), entry.name)
    if isinstance(found, typer.Typer):
        command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command()(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command

"""The numbers on the command line, like those of the client, have the bounds of what carries them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, get_args

import pytest
import typer

from specsplit.cli import app
from specsplit.cli.commands import ENTRIES
from specsplit.cli.serve import option_of

_HEAD = {
    "--target": "models/pocket/target",
    "--data": "README.md",
    "--kind": "multi_layer_eagle",
    "--out": "/dev/null/head",
}
NEEDED = {
    "generate": ["--prompt", "x"],
    "health": ["127.0.0.1:1"],
    "update-weights": ["second"],
    "train-head": [word for option in _HEAD.items() for word in option],
}
"""What a command is given to get as far as its numbers."""


def numbers() -> Iterator[tuple[str, str, type[int] | type[float], Any]]:
    """Every option that is a number: its command, its name, its type, and what typer knows of it. Those of serve are settings."""
    for command, place in ENTRIES.items():
        found = getattr(import_module(f"specsplit.cli.{place.module}"), place.name)
        if isinstance(found, typer.Typer):
            continue
        for name, parameter in inspect.signature(found, eval_str=True).parameters.items():
            kind, *rest = get_args(parameter.annotation) or (parameter.annotation,)
            number = next((each for each in (int, float) if each in (kind, *get_args(kind))), None)
            if number is not None and rest:
                yield command, name, number, rest[0]


NUMBERS = [pytest.param(*each, id=f"{each[0]}-{each[1]}") for each in numbers()]


def run(arguments: Sequence[str]) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        app(list(arguments), prog_name="specsplit")
    return left.value.code


@pytest.mark.parametrize(("command", "name", "number", "option"), NUMBERS)
def test_a_number_beyond_its_bound_is_refused_by_the_name_of_the_option(
    command: str, name: str, number: type, option: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option.min is None or option.max is not None, f"{name} has a lower bound and no upper one"
    beyond = 10**30 if option.max is None else math.floor(option.max) + 1
    for value in (beyond, *(["nan", "inf"] if number is float else [])):
        assert run([command, *NEEDED.get(command, []), option_of(name), str(value)]) == 2, value
        said = capsys.readouterr().err
        assert name in said.replace("-", "_") and said.count("\n") == 1, said

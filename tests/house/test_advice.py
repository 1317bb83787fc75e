"""What a sentence of the product advises is there for whom it is said to: an option, a command, a setting and its value, a variable.

A sentence is a string of the source, an f-string with {} for what is put in. A command says those of its module and of what that imports of
specsplit.cli, `train-head` those of specsplit.training too, a service those of its package, and every service those of the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import TypeAdapter, ValidationError
from pydantic_settings import BaseSettings

from scripts.surface import cli_options
from specsplit.cli import app
from specsplit.cli.commands import ENTRIES
from specsplit.cli.serve import SETTINGS
from specsplit.requests import GenerateRequest
from specsplit.settings import ClientSettings
from specsplit.values import Sampling, Stopping
from tests.house.test_docstrings import docstrings
from tests.house.test_size import PACKAGES, ROOT

EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("specsplit/build.py", "--no-optional-locks"): "git's",
    ("specsplit/build.py", "--porcelain"): "git's",
    ("specsplit/build.py", "--branch"): "git's",
    ("specsplit/build.py", "SPECSPLIT_COMMIT"): "set when an image is built, and no setting",
    ("specsplit/ranks/environment.py", "--nproc-per-node"): "torchrun's",
    ("specsplit/ranks/environment.py", "--rdzv-backend"): "torchrun's",
    ("specsplit/cli/up.py", "--address"): "of specsplit generate, with which the line begins",
    ("specsplit/cli/train_head.py", "--model"): "of specsplit serve drafter, with which the line goes on",
    ("specsplit/training/card.py", "--model"): "of specsplit serve drafter, with which the line begins",
    ("specsplit/cli/app.py", "specsplit this"): "no command",
    ("specsplit/text/vocabulary.py", "specsplit can"): "no command",
    ("specsplit/model/attention/support.py", "specsplit does"): "no command",
    ("specsplit/model/attention/support.py", "specsplit serves"): "no command",
    ("specsplit/model/layers/shards.py", "gate_up_proj"): "a weight of a model",
    ("specsplit/model/layers/shards.py", "down_proj"): "a weight of a model",
}
"""What is said in these modules and is not to be found, and why that is right."""
OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w{-])")
COMMAND = re.compile(r"(?<![\w/.])specsplit ([a-z]+(?:-[a-z]+)*)\b")
VARIABLE = re.compile(r"SPECSPLIT_[A-Z_]+")
TARGET = re.compile(r"`make ([a-z-]+)")
NAME = r"[a-z]+(?:_[a-z]+)+"
TO_BE_SET = re.compile(
    rf"\b(?:give|leave out|lower|make|raise|set|take|with|without) ({NAME}(?:(?:,| and| or) {NAME})*)"
)
WITH_VALUE = re.compile(r"(?<!\w)([a-z][a-z_]+) = ([a-z0-9]+)(?: or ([a-z0-9]+))?")


@dataclass(frozen=True)
class Sentence:
    place: str
    text: str
    is_docstring: bool = False

    @property
    def for_users(self) -> bool:
        """Docstrings are printed as the help of commands and settings; all others are for who reads the source."""
        return not self.is_docstring or self.place.startswith(("specsplit/cli/", "specsplit/settings/"))

    @property
    def services(self) -> list[str]:
        """Who says it, if no command does."""
        package, stem = self.place.partition("/")[0], Path(self.place).stem
        if self.place.startswith("specsplit/settings/") and stem in SETTINGS:
            return [stem]
        return [package] if package in SETTINGS else list(SETTINGS)


def sentences_of(source: str, place: str) -> Iterator[Sentence]:
    tree = ast.parse(source)
    docs, parts = {id(each) for each in docstrings(tree)}, set[int]()
    for each in ast.walk(tree):  # parents come before children
        if isinstance(each, ast.JoinedStr):
            parts |= {id(part) for part in each.values}
            texts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in each.values)
            yield Sentence(place, "".join(texts))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts:
            yield Sentence(place, each.value, id(each) in docs)


def sentences() -> Iterator[Sentence]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if ROOT / "specsplit" / "v1" not in path.parents:
                yield from sentences_of(path.read_text(), str(path.relative_to(ROOT)))


@cache
def options() -> Mapping[str, set[str]]:
    """Those of every command by its words; `serve` itself has those that all services have."""
    found: dict[str, set[str]] = {f"specsplit {name}": set() for name in ENTRIES}
    for line in cli_options(typer.main.get_command(app), "specsplit"):
        command, _, names = line.removeprefix("cli ").rpartition(" ")
        found.setdefault(command, set()).update(names.split("/"))
    found["specsplit serve"] = set.intersection(*(found[f"specsplit serve {service}"] for service in SETTINGS))
    return {command: {*names, "--help"} for command, names in found.items()}


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of specsplit.cli that one of them imports, at whatever remove, and itself."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        file = ROOT / "specsplit" / "cli" / f"{name}.py"
        if name in found or not file.exists():
            continue
        found.add(name)
        for each in ast.walk(ast.parse(file.read_text())):
            if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("specsplit.cli"):
                inside = each.module.removeprefix("specsplit.cli").lstrip(".")
                waiting += [inside] if inside else [alias.name for alias in each.names]
    return frozenset(found)


def offers(sentence: Sentence, option: str) -> bool:
    """True if an option can be given to who says the sentence."""
    if sentence.place.startswith("specsplit/training/"):
        return option in options()["specsplit train-head"]
    if not sentence.place.startswith("specsplit/cli/"):
        return all(option in options()[f"specsplit serve {service}"] for service in sentence.services)
    module, always = Path(sentence.place).stem, imports_of("app")
    commands = [name for name, place in ENTRIES.items() if module in imports_of(place.module) | always]
    return option in set().union(options()["specsplit"], *(options()[f"specsplit {name}"] for name in commands))


@cache
def variables() -> set[str]:
    classes: list[type[BaseSettings]] = [*SETTINGS.values(), ClientSettings]
    prefixes = {each: str(each.model_config.get("env_prefix")) for each in classes}
    return {*prefixes.values(), *(prefixes[each] + name.upper() for each in classes for name in each.model_fields)}


@cache
def requests() -> set[str]:
    """What a request may say."""
    return {each.name for each in chain(*map(fields, (GenerateRequest, Sampling, Stopping)))}


def is_setting(sentence: Sentence, name: str) -> bool:
    """True if a request, or a service that says the sentence, can be given this."""
    return name in requests() or any(name in SETTINGS[service].model_fields for service in sentence.services)


def takes(sentence: Sentence, name: str, value: str) -> bool:
    for service in sentence.services:
        if field := SETTINGS[service].model_fields.get(name):
            adapter: TypeAdapter[Any] = TypeAdapter(field.annotation or Any)
            try:
                adapter.validate_python(value)
            except ValidationError:
                return False
    return is_setting(sentence, name)


def missing(sentence: Sentence) -> Iterator[str]:
    """What it advises and nobody has."""
    text, targets = sentence.text, re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    yield from (option for option in OPTION.findall(text) if not offers(sentence, option))
    yield from (name for name in VARIABLE.findall(text) if name not in variables())
    yield from (f"make {name}" for name in TARGET.findall(text) if name not in targets)
    if sentence.for_users:
        yield from (f"specsplit {name}" for name in COMMAND.findall(text) if name not in ENTRIES)
        names = chain.from_iterable(re.findall(NAME, found) for found in TO_BE_SET.findall(text))
        yield from (name for name in names if not is_setting(sentence, name))
        values = ((name, value) for name, *given in WITH_VALUE.findall(text) for value in given if value)
        yield from (f"{name} = {value}" for name, value in values if not takes(sentence, name, value))


def test_whatever_a_sentence_advises_is_there() -> None:
    found = {(each.place, what): each.text for each in sentences() for what in missing(each)}
    assert {key: text for key, text in found.items() if key not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - found.keys() == set(), "no longer said"


@pytest.mark.parametrize(
    ("place", "text", "what"),
    [
        ("specsplit/cli/chat.py", "say it again with --resume-from", "--resume-from"),
        ("specsplit/rpc/hints.py", "it shows no certificate (--tls-certificate)", "--tls-certificate"),
        ("drafter/specsplit_drafter/edge/service.py", "give --num-steps", "--num-steps"),
        ("specsplit/cli/failures.py", "start one with specsplit start", "specsplit start"),
        ("specsplit/cli/up.py", "or say SPECSPLIT_VERIFIER_KV_TOKEN", "SPECSPLIT_VERIFIER_KV_TOKEN"),
        ("specsplit/v1/__init__.py", "written by `make proto`", "make proto"),
        ("verifier/specsplit_verifier/target/runner.py", "set kv_tokens or kv_pages lower", "kv_pages"),
        ("specsplit/model/lm/probe.py", "they differ: set cpu_layers = none", "cpu_layers = none"),
    ],
)
def test_what_is_not_there_is_found(place: str, text: str, what: str) -> None:
    assert list(missing(Sentence(place, text))) == [what]


def test_an_f_string_is_one_sentence() -> None:
    assert [each.text for each in sentences_of('say(f"give {a} to --set-{b}, not", "x")', "")] == [
        "give {} to --set-{}, not",
        "x",
    ]

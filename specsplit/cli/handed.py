"""The settings that `specsplit up` hands to its children: from a file with a table for each service, and from --set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specsplit.cli.serve import SETTINGS
from specsplit.errors import InvalidRequest, quoted
from specsplit.settings.sources import read_tables

_EXAMPLE = "verifier.kv_tokens=65536"
_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "coordinator": {"model": "--model", "listen": "--listen", "web_listen": "--web-listen"},
        "verifier": {"model": "--model", "inflate_layers": "--inflate-layers", "coordinator": "--listen"},
        "drafter": {"kind": "--drafter", "model": "--draft-model", "target": "--model", "coordinator": "--listen"},
    }
)
"""The settings that options of up itself decide."""
_OF_MEMBERS = ("listen", "advertise", "member_id")
"""What up says to each verifier and drafter by itself."""
_RANKS = ("dp_size", "tp_size")
_OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")
"""How a sentence names the option of a service."""


@dataclass(frozen=True)
class Setting:
    """One value for all children of a service."""

    service: str
    name: str
    value: object
    place: str
    """Where it was given, as a sentence calls it."""

    def check(self) -> None:
        """Raise InvalidRequest for a service that does not exist, and for a setting that nobody but up decides."""
        if self.service not in SETTINGS:
            raise InvalidRequest(
                self.place, f"there is no service {quoted(self.service)}; expected coordinator, verifier or drafter"
            )
        if option := _OPTIONS[self.service].get(self.name):
            raise InvalidRequest(self.place, f"up has an option that decides this; give {option} instead")
        if self.service != "coordinator" and self.name in _OF_MEMBERS:
            raise InvalidRequest(self.place, "up says this to every child by itself; leave it out")
        if self.name in _RANKS:
            raise InvalidRequest(
                self.place,
                "is for processes that torchrun starts, and up starts none of those; leave it out, or start them with "
                "torchrun and specsplit serve",
            )


@dataclass(frozen=True)
class Handed:
    """The settings of all services."""

    settings: Sequence[Setting]
    """At most one of a service and name."""

    def values(self, service: str) -> dict[str, object]:
        """What the children of a service are given, by name of the setting."""
        return {each.name: each.value for each in self.settings if each.service == service}

    def value(self, service: str, name: str) -> str:
        """What is said of a setting, here or in the environment; empty: nothing."""
        return str(self.values(service).get(name) or os.environ.get(_variable(service, name), ""))

    def unless_given(self, setting: Setting) -> Handed:
        """With this one too, unless something is said of it, here or in the environment."""
        if setting.name in self.values(setting.service) or _in_environment(setting):
            return self
        return Handed((*self.settings, setting))

    def place(self, service: str, name: str) -> str:
        """Where a setting was given; of one that was not, where to give it."""
        here = (each.place for each in self.settings if (each.service, each.name) == (service, name))
        return next(here, _OPTIONS[service].get(name, f"--set {service}.{name}"))

    def blamed(self, service: str, error: InvalidRequest) -> InvalidRequest:
        """The error of a service's settings, as one who gave them to up understands it. One that names a variable keeps that."""
        known = error.field in SETTINGS[service].model_fields or error.field in self.values(service)
        field = self.place(service, error.field) if known else error.field
        return InvalidRequest(field, _OPTION.sub(lambda found: self._named(service, found[0]), error.problem))

    def _named(self, service: str, option: str) -> str:
        name = option.removeprefix("--").replace("-", "_")
        field = SETTINGS[service].model_fields.get(name)
        if field is None:
            return option
        return f"--set {service}.{name}={'true' if field.annotation is bool else 'FILE'}"


def read_handed(config: Path | None, given: Sequence[str]) -> Handed:
    """What --set and a file say: --set counts before the environment, and that before the file, as in every service.

    Raises InvalidRequest with the place of what is wrong.

    Whether values are good is for the settings of each service to say.
    """
    named: dict[tuple[str, str], Setting] = {}
    for each in _of_options(given):
        if (each.service, each.name) in named:
            raise InvalidRequest(each.place, "is given twice; leave one of them out")
        named[each.service, each.name] = each
    in_file = {(each.service, each.name): each for each in _of_file(config)}
    for each in (*in_file.values(), *named.values()):
        each.check()
    counting = {key: each for key, each in in_file.items() if not _in_environment(each)}
    return Handed(tuple({**counting, **named}.values()))


def _in_environment(setting: Setting) -> bool:
    """True if a variable says the same: every child reads those by itself."""
    return bool(os.environ.get(_variable(setting.service, setting.name)))


def _variable(service: str, name: str) -> str:
    return f"{SETTINGS[service].model_config.get('env_prefix', '')}{name.upper()}"


def _of_options(given: Sequence[str]) -> Iterator[Setting]:
    for each in given:
        name, equals, value = each.partition("=")
        service, dot, name = name.partition(".")
        if not (equals and dot and service and name):
            raise InvalidRequest("--set", f"is {quoted(each)}, expected SERVICE.NAME=VALUE, as {_EXAMPLE}")
        yield Setting(service, name, value, f"--set {service}.{name}")


def _of_file(config: Path | None) -> Iterator[Setting]:
    if config is None:
        return
    try:
        tables = read_tables(config, tuple(SETTINGS))
    except InvalidRequest as error:
        raise InvalidRequest("--config", error.problem) from error
    for service, values in tables.items():
        for name, value in values.items():
            yield Setting(service, name, value, f"{name} in [{service}] of {config}")

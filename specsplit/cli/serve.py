"""`specsplit serve`: one service in this process. Its options are the fields of its settings class."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from specsplit.cli.grouped import GroupedCommand
from specsplit.cli.signals import ctrl_c_at_once
from specsplit.cli.streams import let_output_go
from specsplit.errors import InvalidRequest, NotFound, Unavailable
from specsplit.interpreter import importing
from specsplit.openmp import sleep_at_barriers
from specsplit.settings import CoordinatorSettings, DrafterSettings, ServiceSettings, Settings, VerifierSettings
from specsplit.settings.groups import GROUPS

SETTINGS: dict[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
}
"""Services by name; the code of each is found through the entry points of this group."""
GROUP = "specsplit.services"

_HELP = {
    "coordinator": "Take requests, and know who is in the cluster.",
    "verifier": "Decode with a target model.",
    "drafter": "Grow token trees ahead of verifiers.",
}

serve_app = typer.Typer(help="Run one service in this process until SIGTERM or Ctrl-C.", rich_markup_mode=None)


def option_of(field: str) -> str:
    """Return the name of a setting on the command line."""
    return "--" + field.replace("_", "-")


def load_settings(settings_class: type[Settings], config: Path | None = None, **overrides: object) -> Settings:
    """Load settings as `Settings.load` does; the InvalidRequest names the option that was given, or that is missing."""
    try:
        return settings_class.load(config, **overrides)
    except InvalidRequest as error:
        missing = error.field in settings_class.model_fields and error.problem.startswith("is required")
        named = missing or error.field in (*overrides, "config")
        raise InvalidRequest(option_of(error.field) if named else error.field, error.problem) from error


def run_service(service: str, settings: Settings) -> int:
    """Run a service in this process; its exit status. Raises NotFound or Unavailable if its code is not installed."""
    found = [each for each in entry_points(group=GROUP) if each.name == service]
    if not found:
        raise NotFound(f"no installed package offers the service {service!r} (entry point group {GROUP})")
    sleep_at_barriers()
    try:
        with ctrl_c_at_once(), importing():
            main: Callable[[Settings], int] = found[0].load()
    except ModuleNotFoundError as error:
        hint = "install the engine with: pip install 'specsplit[engine]'"
        raise Unavailable(f"the {service} cannot start: {error}; {hint}") from error
    return main(settings)


def _command(service: str, settings_class: type[Settings]) -> Callable[..., None]:
    """Make a function whose keyword parameters are --config and every setting."""

    def serve(config: Path | None = None, **given: Any) -> None:
        let_output_go()
        overrides = {field: value for field, value in given.items() if value is not None}
        sys.exit(run_service(service, load_settings(settings_class, config, **overrides)))

    serve.__doc__ = _HELP[service]
    serve.__signature__ = inspect.Signature([_config_parameter(), *_parameters(settings_class)])  # pyright: ignore[reportFunctionMemberAccess]
    serve.__annotations__ = {name: each.annotation for name, each in serve.__signature__.parameters.items()}  # pyright: ignore[reportFunctionMemberAccess]
    return serve


def _config_parameter() -> inspect.Parameter:
    option = typer.Option(None, "--config", metavar="FILE", help="TOML file with settings; options here win over it.")
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None)


def _parameters(settings_class: type[Settings]) -> Iterator[inspect.Parameter]:
    """Make an option of every setting, group by group."""
    fields = settings_class.model_fields
    for group, names in GROUPS.items():
        yield from (_parameter(name, fields[name], group) for name in names if name in fields)


def _parameter(name: str, field: Any, group: str) -> inspect.Parameter:
    """Make one option. Its text goes unchanged to the settings class, which checks it."""
    is_flag = field.annotation is bool
    declaration = f"{option_of(name)}/{option_of('no_' + name)}" if is_flag else option_of(name)
    text = " ".join((field.description or "").split())
    if not field.is_required() and field.default not in (None, ""):
        default = field.default.value if hasattr(field.default, "value") else field.default
        text = f"{text} [default: {default}]"
    metavar = None if is_flag else "VALUE"
    option = typer.Option(None, declaration, help=text, metavar=metavar, show_default=False, rich_help_panel=group)
    annotation = bool | None if is_flag else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


for _service, _settings_class in SETTINGS.items():
    serve_app.command(_service, cls=GroupedCommand)(_command(_service, _settings_class))

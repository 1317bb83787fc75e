"""How settings are found, checked and described."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from specsplit.errors import InvalidRequest


class Settings(BaseSettings):
    """Frozen settings. The constructor takes what it is given and nothing else; `load` also looks in the file and the environment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        env_ignore_empty=True,
        case_sensitive=False,
        allow_inf_nan=False,
    )

    removed: ClassVar[Mapping[str, str]] = {}
    """Settings that there were once, and what to use now."""

    def __init__(self, **values: Any) -> None:
        """Check the values. Raises InvalidRequest that names the setting."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error, self.removed) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the constructor alone decide: a value built in code must not change with the environment."""
        return (init_settings,)

    @classmethod
    def load(cls, file: Path | None = None, **overrides: object) -> Self:
        """Settings from `file` (TOML, flat), the environment and `overrides`, the later the stronger.

        Raises InvalidRequest for a file that cannot be read, an unknown name or a value out of range.
        """
        from_file = _read_toml(cls, file) if file is not None else {}
        return cls(**{**from_file, **_read_environment(cls), **overrides})

    def resolved(self) -> dict[str, object]:
        """Every setting with its value, in the order of declaration; for the log line at start."""
        return self.model_dump(mode="json")


def _read_toml(cls: type[Settings], file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InvalidRequest("config", f"there is no file {file}")
    try:
        return TomlConfigSettingsSource(cls, toml_file=file)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest("config", f"{file} is not valid TOML: {error}") from error


def _read_environment(cls: type[Settings]) -> dict[str, Any]:
    prefix = str(cls.model_config.get("env_prefix", ""))
    if not prefix:
        return {}
    known = {f"{prefix}{name}".lower() for name in cls.model_fields}
    for variable in sorted(os.environ):
        if variable.lower().startswith(prefix.lower()) and variable.lower() not in known:
            name = variable[len(prefix) :].lower()
            if name in cls.removed:
                raise InvalidRequest(variable, _gone(cls.removed[name]))
            raise InvalidRequest(
                variable, "this environment variable names no setting; unset it or correct its spelling"
            )
    return EnvSettingsSource(cls)()


def _gone(instead: str) -> str:
    return f"there is no such setting any more; {instead}"


def _first_problem(error: ValidationError, removed: Mapping[str, str]) -> InvalidRequest:
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden" and field in removed:
        return InvalidRequest(field, _gone(removed[field]))
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(field, "there is no such setting")
    if problem["type"] == "missing":
        return InvalidRequest(field, "is required")
    message = problem["msg"]
    return InvalidRequest(field, f"is {problem['input']!r}: {message[:1].lower()}{message[1:]}")

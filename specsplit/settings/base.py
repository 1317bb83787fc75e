"""How settings are found, checked and described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from specsplit.errors import InvalidRequest, described
from specsplit.settings.sources import from_source, read_environment, read_toml


class Settings(BaseSettings):
    """Frozen settings. The constructor takes what it is given and nothing else; `load` also looks in the file and the environment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    removed: ClassVar[Mapping[str, str]] = {}
    """Settings that there were once, and what to use now."""

    def __init__(self, **values: Any) -> None:
        """Check the values. Raises InvalidRequest that names the setting."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error, self.removed, type(self).model_fields) from error

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        """No text has control characters, and no path a NUL, which only a file can give it: no folder is found and no log readable."""
        if (isinstance(value, str) and not value.isprintable()) or (isinstance(value, Path) and "\0" in str(value)):
            raise ValueError("Input should be of printable characters alone")
        return value

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

        Raises InvalidRequest for a file that cannot be read, an unknown name or a value out of range; it names the variable, or the
        file, that the value comes from.
        """
        in_file = {} if file is None else read_toml(file)
        prefix = str(cls.model_config.get("env_prefix", ""))
        in_environment, unknown = read_environment(prefix, cls.model_fields)
        for variable in unknown:
            raise _unknown_variable(variable, cls.removed.get(variable[len(prefix) :].lower()))
        sources = {name: f"{name} in {file}" for name in in_file}
        sources |= {name: f"{prefix}{name.upper()}" for name in in_environment}
        try:
            return cls(**{**in_file, **in_environment, **overrides})
        except InvalidRequest as error:
            raise from_source(error, {name: at for name, at in sources.items() if name not in overrides}) from error

    def resolved(self) -> dict[str, object]:
        """Every setting with its value, in the order of declaration; for the log line at start."""
        return self.model_dump(mode="json")


def _unknown_variable(variable: str, instead: str | None) -> InvalidRequest:
    if instead is not None:
        return InvalidRequest(variable, _gone(instead))
    return InvalidRequest(variable, "this environment variable names no setting; unset it or correct its spelling")


def _gone(instead: str) -> str:
    return f"there is no such setting any more; {instead}"


def _nearest(name: str, known: Iterable[str]) -> str:
    return "".join(f"; did you mean {each}?" for each in get_close_matches(name, known, 1))


def _first_problem(error: ValidationError, removed: Mapping[str, str], known: Iterable[str]) -> InvalidRequest:
    problems = error.errors(include_url=False)
    problem = min(
        problems, key=lambda each: each["type"] != "extra_forbidden"
    )  # a misspelt name may be why another is missing
    field = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden" and field in removed:
        return InvalidRequest(field, _gone(removed[field]))
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(field, f"there is no such setting{_nearest(field, known)}")
    if problem["type"] == "missing":
        return InvalidRequest(field, "is required")
    message = problem["msg"]
    return InvalidRequest(field, f"is {described(problem['input'])}: {message[:1].lower()}{message[1:]}")

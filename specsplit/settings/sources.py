"""Where settings come from beside the caller: a TOML file and the environment."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from specsplit.errors import InvalidRequest
from specsplit.settings.toml import parse


def read_toml(file: Path) -> dict[str, Any]:
    """The settings in a file, which may be a pipe. Raises InvalidRequest if it cannot be read, is not TOML, or has tables."""
    values = _parsed(file)
    tables = [name for name, value in values.items() if isinstance(value, dict)]
    if tables:
        raise InvalidRequest(
            "config",
            f"{file} has the table [{tables[0]}], and a file for one service has none; "
            "write its settings as lines of their own, without a heading",
        )
    return values


def read_tables(file: Path, services: Collection[str]) -> dict[str, dict[str, Any]]:
    """The settings in a file with a table for each of several services. Raises InvalidRequest for a file or table that is no such thing."""
    values = _parsed(file)
    expected = " or ".join(f"[{service}]" for service in services)
    for name, value in values.items():
        if not isinstance(value, dict):
            raise InvalidRequest("config", f"{file} has {name} outside of a table; expected it below {expected}")
        if name not in services:
            raise InvalidRequest(
                "config", f"{file} has the table [{name}], and there is no such service; expected {expected}"
            )
    return values


def _parsed(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return parse("config", opened.read().decode())
    except FileNotFoundError as error:
        raise InvalidRequest("config", f"there is no file {file}") from error
    except OSError as error:
        raise InvalidRequest("config", f"{file} cannot be read: {error.strerror}") from error
    except InvalidRequest as error:
        raise InvalidRequest("config", f"{file} {error.problem}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("config", f"{file} is not valid TOML: {error}") from error


def read_environment(prefix: str, names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The settings in the environment under their names, and the variables with this prefix that are none. An empty one counts as unset."""
    known, values, unknown = set(names), dict[str, str](), list[str]()
    for variable in sorted(os.environ) if prefix else ():
        name = variable[len(prefix) :].lower()
        if not variable.lower().startswith(prefix.lower()):
            continue
        if name not in known:
            unknown.append(variable)
        elif os.environ[variable]:
            values[name] = os.environ[variable]
    return values, unknown


def from_source(error: InvalidRequest, sources: Mapping[str, str]) -> InvalidRequest:
    """The error, whose field is called as it is where its value stands: "SPECSPLIT_VERIFIER_TOPK", "topk in verifier.toml".

    Where the field does not go with others, it is told where those stand.
    """
    others = [sources[name] for name in error.against if name in sources]
    where = f" (told by {' and '.join(others)})" if others else ""
    return InvalidRequest(sources.get(error.field, error.field), error.problem + where)

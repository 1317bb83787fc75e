"""What the values of this package check and copy with."""

from __future__ import annotations

from typing import Any, Final

from specsplit.errors import InvalidRequest, quoted

MAX_NAME: Final = 256
"""Characters of a request id, a member id, an address, a build or the name of a model."""


def require(condition: bool, field_name: str, problem: str) -> None:
    """Raise InvalidRequest for this field unless the condition holds."""
    if not condition:
        raise InvalidRequest(field_name, problem)


def check_name(field_name: str, name: str) -> None:
    """Raise InvalidRequest for a name that is too long, or that a log or a terminal would not show as it is in one line."""
    require(len(name) <= MAX_NAME, field_name, f"has {len(name):,} characters, expected at most {MAX_NAME}")
    require(name.isprintable(), field_name, f"is {quoted(name)}, expected a name of printable characters alone")


def said(changes: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in vars(changes).items() if value is not None}

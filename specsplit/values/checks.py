"""What the values of this package check and copy with."""

from __future__ import annotations

from typing import Any

from specsplit.errors import InvalidRequest


def require(condition: bool, field_name: str, problem: str) -> None:
    """Raise InvalidRequest for this field unless the condition holds."""
    if not condition:
        raise InvalidRequest(field_name, problem)


def said(changes: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in vars(changes).items() if value is not None}

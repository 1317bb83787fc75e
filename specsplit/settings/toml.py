"""TOML, as files that an operator writes hold it."""

from __future__ import annotations

import tomllib
from typing import Any

from specsplit.errors import InvalidRequest


def parse(field: str, text: str) -> dict[str, Any]:
    """What a text says. Raises InvalidRequest naming the setting."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, too many brackets
        why = str(error).partition("; use sys.")[0]  # which is advice for a programmer
        raise InvalidRequest(field, f"is not valid TOML: {why}") from error

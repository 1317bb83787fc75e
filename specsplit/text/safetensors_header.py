"""What a safetensors file says of its tensors in its first bytes: no torch, and no weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

from specsplit.errors import LoadError

_LONGEST: Final = 100_000_000
"""Bytes that the format allows."""


def header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensors by name, each with its `dtype` and `shape`. Raises LoadError for a file that is none of safetensors, or not whole."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            found: object = json.loads(file.read(length)) if length <= _LONGEST else None
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path} cannot be read: it does not begin as a safetensors file does")
    return cast("dict[str, dict[str, Any]]", found)

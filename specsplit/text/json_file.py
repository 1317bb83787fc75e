"""A JSON file of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from specsplit.errors import LoadError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises LoadError, naming the file, if it is missing, malformed or no object."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", content)

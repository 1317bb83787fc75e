"""How many rows a folder's embeddings have, by the header of the file that holds them: no torch, and no weights are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, cast

_EMBEDDINGS: Final = re.compile(r"(?:^|\.)(?:embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)\.weight$")
_LONGEST_HEADER: Final = 100_000_000
"""Bytes that the format allows."""


def embedding_rows(folder: Path) -> int | None:
    """The rows of the embeddings in a folder's safetensors; None: there are none, or more than one has such a name."""
    found = {rows for path in sorted(folder.glob("*.safetensors")) for rows in _rows_in(path)}
    return found.pop() if len(found) == 1 else None


def _rows_in(path: Path) -> list[int]:
    return [
        int(entry["shape"][0])
        for name, entry in _header(path).items()
        if _EMBEDDINGS.search(name) and entry.get("shape")
    ]


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """What a safetensors file says of its tensors; nothing, if it is none."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: object = json.loads(file.read(length)) if length <= _LONGEST_HEADER else None
    except (OSError, ValueError):
        return {}
    return cast("dict[str, dict[str, Any]]", header) if isinstance(header, dict) else {}

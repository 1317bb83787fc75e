"""How many rows a folder's embeddings have, by the header of the file that holds them: no torch, and no weights are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from specsplit.errors import LoadError
from specsplit.text.safetensors_header import header

_EMBEDDINGS: Final = re.compile(r"(?:^|\.)(?:embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)\.weight$")


def embedding_rows(folder: Path) -> int | None:
    """The rows of the embeddings in a folder's safetensors; None: there are none, or more than one has such a name."""
    found = {rows for path in sorted(folder.glob("*.safetensors")) for rows in _rows_in(path)}
    return found.pop() if len(found) == 1 else None


def _rows_in(path: Path) -> list[int]:
    try:
        entries = header(path)
    except LoadError:  # who needs its tensors says so
        return []
    return [
        int(entry["shape"][0]) for name, entry in entries.items() if _EMBEDDINGS.search(name) and entry.get("shape")
    ]

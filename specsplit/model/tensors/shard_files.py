"""Shards of safetensors that lie in a folder without the index that would say which tensor is in which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from safetensors import SafetensorError, safe_open

from specsplit.errors import LoadError

INDEX: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")
_WEIGHTS: Final = ("model.safetensors", INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""What transformers finds by itself."""


def weight_map(folder: Path) -> dict[str, str] | None:
    """The shard that each tensor is in, by its name, read from the shards; None: there are none, or they need no such map.

    Raises LoadError if one of them is missing or cannot be read.
    """
    if any((folder / name).exists() for name in _WEIGHTS):
        return None
    shards = {path.name: match for path in sorted(folder.iterdir()) if (match := _SHARD.fullmatch(path.name))}
    if not shards:
        return None
    counts = {int(match[2]) for match in shards.values()}
    if counts != {len(shards)}:
        raise LoadError(
            f"model folder {folder} has {len(shards)} shards of {max(counts)} ({', '.join(shards)}): expected all of one set"
        )
    return {name: shard for shard in shards for name in _names(folder / shard)}


@contextmanager
def indexed(folder: Path) -> Iterator[Path]:
    """The folder, or, where its shards lack an index, one of links to its files with an index beside them. Raises LoadError."""
    found = weight_map(folder)
    if found is None:
        yield folder
        return
    with TemporaryDirectory(prefix="specsplit_") as made:
        for path in folder.iterdir():
            (Path(made) / path.name).symlink_to(path.resolve())
        (Path(made) / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": found}), encoding="utf-8")
        yield Path(made)


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error

"""Whether a target's folder holds MTP layers, by config.json and the names of its tensors: no weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from specsplit.mtp.families import family_of
from specsplit.text.json_file import read_json
from specsplit.text.safetensors_header import header

_INDEX: Final = "model.safetensors.index.json"


def holds_mtp(folder: Path) -> bool:
    """Whether a drafter can take MTP layers out of this target's folder. Raises LoadError if its config.json cannot be read."""
    return family_of(read_json(folder / "config.json"), _names(folder)) is not None


def _names(folder: Path) -> frozenset[str]:
    """The names of all tensors in the folder's safetensors, by their index where there is one."""
    if (folder / _INDEX).is_file():
        files: Any = read_json(folder / _INDEX).get("weight_map")
        return frozenset(cast("dict[str, str]", files) if isinstance(files, dict) else ())
    return frozenset(name for path in folder.glob("*.safetensors") for name in header(path))

"""Whether a target's folder holds MTP layers, by config.json and the names of its tensors: no weights are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, cast

from specsplit.errors import LoadError
from specsplit.mtp.families import family_of
from specsplit.text.json_file import read_json
from specsplit.text.safetensors_header import header

_PACKED: Final = (".qweight", ".weight_packed")
"""Ends of the names of weights that hold several numbers in one."""
_INDEX: Final = "model.safetensors.index.json"


def holds_mtp(folder: Path) -> bool:
    """Whether a drafter can take MTP layers out of this target's folder, as far as names tell: neither where some are missing, nor where
    their weights are integers of GPTQ, AWQ and the like. Raises LoadError if its config.json cannot be read."""
    names = _names(folder)
    family = family_of(read_json(folder / "config.json"), names)
    if family is None:
        return False
    try:
        own = re.compile(family.scope(family.layers(names)))
    except LoadError:
        return False
    return not any(name.endswith(_PACKED) and own.match(name) for name in names)


def _names(folder: Path) -> frozenset[str]:
    """The names of all tensors in the folder's safetensors, by their index where there is one."""
    if (folder / _INDEX).is_file():
        files: Any = read_json(folder / _INDEX).get("weight_map")
        return frozenset(cast("dict[str, str]", files) if isinstance(files, dict) else ())
    return frozenset(name for path in folder.glob("*.safetensors") for name in header(path))

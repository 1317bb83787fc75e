"""How many MTP layers a target's folder holds, by config.json and the names of its tensors: no weights are read."""

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


def num_mtp_layers(folder: Path) -> int:
    """MTP layers that a drafter can take out of this target's folder, as far as names tell: none where some are missing, or where their
    weights are integers of GPTQ, AWQ and the like. Raises LoadError if config.json, or a file without an index, cannot be read."""
    names = _names(folder)
    family = family_of(read_json(folder / "config.json"), names)
    if family is None:
        return 0
    try:
        layers = family.layers(names)
    except LoadError:
        return 0
    own = re.compile(family.scope(layers))
    return 0 if any(name.endswith(_PACKED) and own.match(name) for name in names) else len(layers)


def _names(folder: Path) -> frozenset[str]:
    """The names of all tensors in the folder's safetensors, by their index where there is one."""
    if (folder / _INDEX).is_file():
        files: Any = read_json(folder / _INDEX).get("weight_map")
        return frozenset(cast("dict[str, str]", files) if isinstance(files, dict) else ())
    return frozenset(name for path in folder.glob("*.safetensors") for name in header(path))

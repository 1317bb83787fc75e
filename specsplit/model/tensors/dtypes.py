"""Types of weights, by the names that settings and config.json have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from specsplit.errors import LoadError

AUTO: Final = "auto"
"""The dtype that config.json says."""
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KEYS: Final = ("dtype", "torch_dtype")
"""Keys of config.json that say the dtype: the one that transformers writes now, and the one it wrote before."""
_PARTS: Final = ("transformer_layer_config", "text_config")
"""Keys under which a config.json holds another config."""


def dtype_of(name: str) -> torch.dtype:
    """Raises LoadError for a name that is none."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise LoadError(f"dtype {name!r} is not known; expected one of {', '.join(_DTYPES)} or {AUTO}")
    return dtype


def said_by(configs: Mapping[str, Mapping[str, Any]]) -> torch.dtype:
    """The type that the first of these config.json (by the folder they lie in) names that names any. Raises LoadError."""
    for config in configs.values():
        for facts in (config, *(config.get(part) or {} for part in _PARTS)):
            for key in _KEYS:
                if facts.get(key):
                    return dtype_of(str(facts[key]).removeprefix("torch."))
    raise LoadError(f"dtype is {AUTO}, but config.json names none in {' nor in '.join(configs)}; set dtype")

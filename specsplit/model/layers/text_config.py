"""The text model inside a multimodal folder: its config, and the names that its weights have among those of the whole."""

from __future__ import annotations

import copy
import re
from typing import Any, Final

from transformers import PretrainedConfig

TEXT_NAMES: Final = {
    r"^(?:model\.)?(?:language|text)_model\.lm_head\.": "lm_head.",
    r"^(?:model\.)?(?:language|text)_model\.(?:model\.)?(?!lm_head\.)": "model.",
}
"""Patterns of names in a multimodal folder, and what stands there in a folder of the text model alone: transformers' `key_mapping`."""
_LISTS: Final = ("ignore", "modules_to_not_convert", "llm_int8_skip_modules")
"""Where a quantization_config names modules."""


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the text model that a folder holds: the folder's own, or the one inside a multimodal config with what that says for it.

    Embeddings are tied if either of the two says so: transformers goes by the outer one, and ties nothing that a folder holds twice.
    """
    inner = config.get_text_config(decoder=True)
    if inner is config or config.is_encoder_decoder:
        return _with_own_token(config)
    inner = copy.deepcopy(inner)
    if inner.dtype is None:
        inner.dtype = config.dtype
    quantization: dict[str, Any] | None = getattr(config, "quantization_config", None)
    if quantization is not None and getattr(inner, "quantization_config", None) is None:
        inner.quantization_config = _of_text(quantization)
    inner.tie_word_embeddings = any(getattr(each, "tie_word_embeddings", False) for each in (inner, config))
    if getattr(config, "eos_token_id", None) is not None:
        inner.eos_token_id = config.eos_token_id
    return inner


def _with_own_token(config: PretrainedConfig) -> PretrainedConfig:
    """MiMo-V2-Flash counts the tokens of a window that come before the own one, which transformers 5.17 does not know."""
    before = getattr(config, "sliding_window_size", None)
    if config.model_type == "mimo_v2_flash" and before is not None:
        config.sliding_window = before + 1
    return config


def _of_text(quantization: dict[str, Any]) -> dict[str, Any]:
    """A quantization_config that names modules of the whole, for the text model alone."""
    named = {key: [_in_text(name) for name in quantization[key]] for key in _LISTS if quantization.get(key)}
    return {**quantization, **named}


def _in_text(module: str) -> str:
    name = f"{module}."
    for pattern, replacement in TEXT_NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name.removesuffix(".")

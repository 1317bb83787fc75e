"""The text model inside a multimodal folder: its config, and the names that its weights have among those of the whole."""

from __future__ import annotations

import copy
from typing import Final

from transformers import PretrainedConfig

TEXT_NAMES: Final = {
    r"^(?:model\.)?language_model\.lm_head\.": "lm_head.",
    r"^(?:model\.)?language_model\.(?:model\.)?(?!lm_head\.)": "model.",
}
"""Patterns of names in a multimodal folder, and what stands there in a folder of the text model alone: transformers' `key_mapping`."""
_SHARED: Final = ("dtype", "quantization_config")
"""What a multimodal config says once for all of its parts."""


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the text model that a folder holds: the folder's own, or the one inside a multimodal config with what that says for it.

    Embeddings are tied if either of the two says so: transformers goes by the outer one, and ties nothing that a folder holds twice.
    """
    inner = config.get_text_config(decoder=True)
    if inner is config or config.is_encoder_decoder:
        return config
    inner = copy.deepcopy(inner)
    for name in _SHARED:
        if getattr(inner, name, None) is None and getattr(config, name, None) is not None:
            setattr(inner, name, getattr(config, name))
    inner.tie_word_embeddings = any(getattr(each, "tie_word_embeddings", False) for each in (inner, config))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(config, name, None) is not None:
            setattr(inner, name, getattr(config, name))
    return inner

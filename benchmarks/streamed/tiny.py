"""A target so small that what a step takes is the host's time: one layer of random weights, with the vocabulary of the pocket models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

VOCABULARY: Final = 2048
CONTEXT: Final = 512
_CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": VOCABULARY,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "eos_token_id": 0,
}  # fmt: skip


def write_tiny(folder: Path) -> Path:
    """Make its folder, of a config alone: the weights are drawn when it is loaded (`random_weights`)."""
    (folder / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
    return folder

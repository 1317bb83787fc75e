"""Targets of the sizes that are measured: the pocket target, and configurations that get random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from transformers import LlamaConfig

from specsplit.model import Geometry

_CONTEXT = 8192
CONFIGS: Mapping[str, LlamaConfig] = MappingProxyType(
    {
        "tiny": LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, vocab_size=256, max_position_embeddings=256, tie_word_embeddings=True,
        ),
        "1B": LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
            head_dim=64, vocab_size=128_256, max_position_embeddings=_CONTEXT, tie_word_embeddings=True,
        ),
        "8B": LlamaConfig(
            hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
            head_dim=128, vocab_size=128_256, max_position_embeddings=_CONTEXT, tie_word_embeddings=False,
        ),
    }
)  # fmt: skip
"""By name. 1B and 8B have the shape of Llama 3.2 1B and of Llama 3.1 8B; tiny stands for both in a dry run."""


def name_of(size: str, *, tiny: bool) -> str:
    """The name of the configuration that is a target of this size."""
    return "tiny" if tiny else size


def geometry_of(config: LlamaConfig) -> Geometry:
    """The attention of its layers."""
    heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    width = config.head_dim or config.hidden_size // config.num_attention_heads
    return Geometry.uniform(config.num_hidden_layers, *heads, width)


def write_config(name: str, folder: Path) -> Path:
    """Write a model folder without weights, for the setting random_weights; the folder."""
    CONFIGS[name].save_pretrained(folder / name)
    return folder / name

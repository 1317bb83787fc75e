"""What is kept of a token by models with latent attention, as latents and as heads, in the shapes that transformers' configs have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig

from benchmarks.report import Report, Row
from scripts.targets.settings import OWN
from scripts.targets.tiny import settings_of
from specsplit.model import Geometry
from specsplit.model.attention.interface import NAME
from specsplit.model.attention.latent import latent_attention
from specsplit.model.attention.support import measure
from specsplit.model.pages.geometry import NO_ATTENTION, Layer

NUMBER = 2
"""Bytes of a number in bfloat16."""
_TEXT = 8192
_ATTENDS = "full_attention"
_WIDTHS = ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", {"num_hidden_layers": 60, "num_attention_heads": 128}),
    "deepseek_v2, Lite": ("deepseek_v2", {"num_hidden_layers": 27, "num_attention_heads": 16}),
    **{
        name: (name, {})
        for name in ("deepseek_v3", "glm4_moe_lite", "kimi_linear", "longcat_flash", "minicpm3", "youtu")
    },
}
"""Name in the table: the kind, and what its config has not by itself."""
_HIDDEN = 640
"""Width of a small model: a multiple of the number of heads of all."""
COLUMNS = {
    "kind": "model",
    "layers": "layers that attend",
    "heads": "heads",
    "widths": "keys, values of a head",
    "latent": "latent, shared part",
    "as_heads": "KV of a token as heads, bytes",
    "as_latents": "as latents, bytes",
    "times": "times less",
    "text": f"of {_TEXT} tokens, GB",
}


def small(published: PretrainedConfig) -> PretrainedConfig:
    """A config of a few layers that attend with the heads of a published one, and of which all else is tiny."""
    kind = CONFIG_MAPPING[published.model_type]
    own: Mapping[str, Any] = OWN.get(published.model_type, {})
    widths = {name: getattr(published, name) for name in _WIDTHS}
    heads = {"num_key_value_heads": published.num_attention_heads, "head_dim": published.qk_rope_head_dim}
    return kind(**settings_of(kind, {**own, "hidden_size": _HIDDEN, **widths, **heads}))


def measured(config: PretrainedConfig) -> tuple[Layer, Layer]:
    """What the attention of a model keeps, as a look at it shows when it is loaded: with heads, and with latents."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    without = [number for number, kind in enumerate(kinds_of(config)) if kind != _ATTENDS]
    standing = latent_attention(model)
    heads = measure(model, config.max_position_embeddings, without)
    for each in standing:
        each.absorb()
    latents = measure(model, config.max_position_embeddings, without)
    of_heads, of_latents = (set(geometry.layers) - {NO_ATTENTION} for geometry in (heads, latents))
    return of_heads.pop(), of_latents.pop()


def kinds_of(config: PretrainedConfig) -> list[str]:
    """The kind of every layer."""
    return getattr(config, "layer_types", None) or [_ATTENDS] * config.num_hidden_layers


def row_of(name: str) -> Row:
    """The row of one shape."""
    kind, own = SHAPES[name]
    published = CONFIG_MAPPING[kind](**own)
    count = kinds_of(published).count(_ATTENDS)
    of_heads, of_latents = measured(small(published))
    heads, latents = (NUMBER * Geometry((layer,) * count).numbers for layer in (of_heads, of_latents))
    return {
        "kind": name,
        "layers": count,
        "heads": of_heads.kv_heads,
        "widths": f"{of_heads.key_width}, {of_heads.value_width}",
        "latent": f"{of_latents.value_width}, {of_latents.key_width - of_latents.value_width}",
        "as_heads": heads,
        "as_latents": latents,
        "times": heads / latents,
        "text": f"{heads * _TEXT / 1e9:.3g}, {latents * _TEXT / 1e9:.3g}",
    }


def report(machine: dict[str, object]) -> Report:
    """The table of all shapes, which no clock has measured."""
    notes = [
        "Kinds are those of transformers, with its defaults for layers and widths, and for deepseek_v2 with what its two models have. What "
        "a layer keeps is as the look at load shows it of a model of four layers with these heads, in bfloat16.",
    ]
    return Report(
        "latents", "What is kept of latent attention", COLUMNS, [row_of(name) for name in SHAPES], machine, {}, notes
    )

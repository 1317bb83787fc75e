"""A checkpoint of the trainer as a head's folder, with what a reader of the head needs and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from specsplit.text.json_file import read_json

_BORROWED: Final = ("embed_tokens.weight", "t2d")
"""Tensors of a checkpoint that are the target's, or that training alone needs."""


def publish_checkpoint(checkpoint: Path, target: Path, out: Path, *, causal: bool = False) -> None:
    """Write the head of a checkpoint to a folder, in bfloat16 and without what it shares with its target.

    causal: in its blocks a token sees those before it alone, in all layers, which the config of the trainer has no word for.
    """
    tensors = load_file(checkpoint / "model.safetensors")
    own = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
        if name not in _BORROWED
    }
    facts: dict[str, Any] = read_json(checkpoint / "config.json")
    facts.pop("auto_map", None)  # it names code of the library that is not beside the head
    facts["dtype"] = "bfloat16"
    if causal:
        facts["is_causal"] = True
    layer = facts["transformer_layer_config"]
    if "sliding_attention" not in (layer.get("layer_types") or ()):
        layer["sliding_window"] = None  # the trainer names one for layers that see everything, too
    facts["speculators_config"]["verifier"]["name_or_path"] = target.resolve().name
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(own, out / "model.safetensors", metadata={"format": "pt"})

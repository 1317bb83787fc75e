"""The pocket models with wider heads: the same functions, in a shape that a GPU's attention kernels take (64, where the pocket's are 32).

A head of D gets D more dimensions that are zero, which adds nothing to any product. Rotary embeddings turn dimensions i and i + D/2 of D
by theta^(-2i/D), and dimensions j and j + D of 2D by theta^(-j/D). So i and i + D/2 move to 2i and 2i + D. Attention divides by the root
of the width, so queries grow by the root of 2. Only that rounds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HEAD_DIM = 64
_WEIGHTS = "model.safetensors"


def widen(models: Path, into: Path) -> Path:
    """Write every model of a folder of models with heads of HEAD_DIM into the folder `into`; that folder."""
    for config in sorted(models.glob("*/config.json")):
        folder = into / config.parent.name
        shutil.copytree(config.parent, folder)
        facts, weights = json.loads(config.read_text(encoding="utf-8")), load_file(folder / _WEIGHTS)
        layers = facts.get("transformer_layer_config", facts)
        while layers["head_dim"] < HEAD_DIM:
            weights = {name: _doubled(name, weight, layers["head_dim"]) for name, weight in weights.items()}
            layers["head_dim"] *= 2
        (folder / "config.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
        save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    return into


def _doubled(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """A weight with heads twice as wide as `head_dim`; weights that know no heads as they are."""
    match name.split(".")[-2:]:
        case ["q_proj", _]:
            return _spread(weight.float(), head_dim) * 2**0.5
        case ["k_proj" | "v_proj", _]:
            return _spread(weight, head_dim)
        case ["q_norm", _]:  # half of what is normed is zero, so that all of it comes out larger by the root of 2
            return _spread(weight.float(), head_dim)
        case ["k_norm", _]:
            return _spread(weight.float(), head_dim) * 0.5**0.5
        case ["o_proj", "weight"]:
            return _spread(weight.T, head_dim).T.contiguous()
        case _:
            return weight


def _spread(weight: Tensor, head_dim: int) -> Tensor:
    """[heads * head_dim, ...] -> [heads * 2 * head_dim, ...]: in every head, row i of either half to row 2i of the half, zeros between."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return torch.stack((halves, torch.zeros_like(halves)), dim=3).flatten(0, 3)

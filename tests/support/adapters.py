"""Adapters of a target in the layout of peft, made from a seed, and the weights that a target has with one merged into it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The projections of a Llama's layer."""


def write_adapter(
    folder: Path,
    target: Path,
    seed: int,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    modules: Sequence[str] = EVERY,
    size: float = 0.5,
) -> Path:
    """Write an adapter of all these projections of a target in one file. `size`: how large its change of weights is beside the weights."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": target.name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
        "init_lora_weights": True,
        "inference_mode": True,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }
    drawn, weights = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, weight in _adapted(target, modules).items():
        outputs, inputs = weight.shape
        down = torch.randn(rank, inputs, generator=drawn) / inputs**0.5
        up = torch.randn(outputs, rank, generator=drawn)
        change = alpha / rank * (up @ down)
        path = f"base_model.model.{name.removesuffix('.weight')}"
        weights[f"{path}.lora_A.weight"] = down
        weights[f"{path}.lora_B.weight"] = up * (size * weight.norm() / change.norm())
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def merged(target: Path, adapter: Path, into: Path) -> Path:
    """Write the target with W + lora_alpha / r * B A in the place of each adapted W."""
    shutil.copytree(target, into)
    config = json.loads((adapter / "adapter_config.json").read_text())
    factors = load_file(adapter / "adapter_model.safetensors")
    weights = {name: weight.float() for name, weight in load_file(target / "model.safetensors").items()}
    for name in _adapted(target, config["target_modules"]):
        path = f"base_model.model.{name.removesuffix('.weight')}"
        down, up = factors[f"{path}.lora_A.weight"], factors[f"{path}.lora_B.weight"]
        weights[name] = weights[name] + config["lora_alpha"] / config["r"] * (up @ down)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into


def _adapted(target: Path, modules: Sequence[str]) -> dict[str, Tensor]:
    weights = load_file(target / "model.safetensors")
    return {
        name: weight.float()
        for name, weight in weights.items()
        if name.endswith(".weight") and name.split(".")[-2] in modules
    }

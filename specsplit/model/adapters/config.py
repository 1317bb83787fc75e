"""adapter_config.json as peft writes it: what of it makes numbers, and what of it is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Final, TypeVar

from specsplit.errors import LoadError, quoted

_Number = TypeVar("_Number", int, float)

CONFIG: Final = "adapter_config.json"
MAX_RANK: Final = 64

_READ: Final = frozenset(("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"))
_SILENT: Final = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("lora_dropout", "megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config"),
        *("lora_ga_config", "runtime_config", "qalora_group_size", "ensure_weight_tying"),
    )
)
"""Fields for training, or for where adapters go, which the names of their tensors say."""
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}
"""What fields may say beside nothing. PiSSA, OLoRA, CorDA and LoftQ begin by changing the base, which is then another one."""
_MEANING: Final[Mapping[str, str]] = {
    "bias": "biases of the base are trained too: train it without",
    "init_lora_weights": (
        "it may have changed the weights of the base before training: have peft make a plain LoRA of it, where save_pretrained is told the "
        "adapter as it began (path_initial_model_for_weight_conversion)"
    ),
    "use_dora": "DoRA scales the columns of a weight, which is not a sum of low rank",
    "modules_to_save": "whole modules are trained beside those of low rank",
    "trainable_token_indices": "rows of the embeddings are trained",
    "target_parameters": "tensors are adapted that are no linear layers, as those of experts",
    "fan_in_fan_out": "weights are stored the other way round",
    "layer_replication": "the base has other layers",
    "alora_invocation_tokens": "it is active for a part of a text alone",
}


@dataclass(frozen=True)
class LoraConfig:
    """What scales the product of the two matrices of a module."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    """Ranks of modules that have another one, by the end of their names, which is a regular expression."""
    alphas: Mapping[str, float]
    """Alphas of modules that have another one, named in the same way."""
    stabilised: bool
    """Whether alpha is divided by the root of the rank (rsLoRA, arXiv 2312.03732), and not by the rank."""

    def rank_of(self, module: str) -> int:
        """The rank of the matrices of a module, by its name in the base."""
        return _matching(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What their product is multiplied by."""
        rank = self.rank_of(module)
        return _matching(self.alphas, module, self.alpha) / (sqrt(rank) if self.stabilised else rank)


def read_config(folder: Path) -> LoraConfig:
    """Read that of an adapter. Raises LoadError, naming the field, for what cannot be served."""
    said = _said(folder)
    if said.get("peft_type") != "LORA":
        raise LoadError(f"{CONFIG} says peft_type = {_shown(said.get('peft_type'))}: expected LORA")
    for field, value in said.items():
        _check(field, value)
    rank, alpha = said.get("r", 8), said.get("lora_alpha", 8)  # peft's own, where it leaves them out
    ranks, alphas = _pattern(said, "rank_pattern"), _pattern(said, "alpha_pattern")
    for each in (rank, *ranks.values()):
        if type(each) is not int or not 1 <= each <= MAX_RANK:
            raise LoadError(f"{CONFIG} says a rank of {_shown(each)}: expected a number from 1 to {MAX_RANK}")
    for each in (alpha, *alphas.values()):
        if type(each) not in (int, float) or not isfinite(each):
            raise LoadError(f"{CONFIG} says an alpha of {_shown(each)}: expected a number")
    return LoraConfig(rank, alpha, ranks, alphas, bool(said.get("use_rslora")))


def _said(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{CONFIG} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise LoadError(f"{CONFIG} is no object of JSON")
    return said


def _check(field: str, value: object) -> None:
    """Raise LoadError for what changes numbers in a way that is not computed here; of a field that is not known, anything may."""
    if field in _READ or field in _SILENT or not value or value in _HARMLESS.get(field, ()):
        return
    meaning = _MEANING.get(field, "what it means for the numbers is not known here")
    raise LoadError(f"{CONFIG} says {field} = {_shown(value)}, which is not supported: {meaning}")


def _pattern(said: Mapping[str, Any], field: str) -> dict[str, Any]:
    pattern = said.get(field) or {}
    if not isinstance(pattern, dict):
        raise LoadError(f"{CONFIG} says {field} = {_shown(pattern)}: expected an object of JSON")
    for key in pattern:
        try:
            re.compile(key)
        except re.error as error:
            raise LoadError(
                f"{CONFIG} has {_shown(key)} in {field}, which is no regular expression: {error}"
            ) from error
    return pattern


def _matching(pattern: Mapping[str, _Number], module: str, default: _Number) -> _Number:
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _shown(value: object) -> str:
    return quoted(json.dumps(value))

"""What transformers passes over in silence where weights are quantised, and would compute wrong numbers with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from specsplit.errors import LoadError
from specsplit.model.tensors.dtypes import AUTO

_PARTS: Final = ("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_packed", "qweight", "qzeros", "scales")
"""Tensors that only a quantised weight has."""


def check_method(config: PretrainedConfig) -> bool:
    """Whether a config says that the weights are quantised. Raises LoadError for a way that transformers does not know, and passes over."""
    said: Any = getattr(config, "quantization_config", None)
    if not said:
        return False
    method = said.get("quant_method") if isinstance(said, dict) else said.quant_method
    known = {"bitsandbytes", *AUTO_QUANTIZATION_CONFIG_MAPPING}
    if method is not None and str(getattr(method, "value", method)) not in known:
        raise LoadError(
            f"its weights are quantised by {method} (quantization_config), which transformers does not read; expected one of "
            f"{', '.join(sorted(known))}"
        )
    return True


def check_quantised(
    folder: Path,
    model: PreTrainedModel,
    dtype: torch.dtype | str,
    *,
    quantised: bool,
    unexpected: Collection[str],
) -> None:
    """Raise LoadError if weights were read that are quantised in another way than config.json says, or not all as one type.

    dtype: the type that was asked for, or "auto". quantised: whether config.json says so. unexpected: names of tensors that nobody read.
    """
    modules = {name for name, _ in model.named_modules()}
    unread = sorted(name for name in unexpected if _is_part(name, modules))
    if unread:
        raise LoadError(
            f"model folder {folder} has {len(unread)} tensors of quantised weights that its config.json says nothing of, {unread[0]} "
            "first: expected a quantization_config that transformers reads"
        )
    embeddings: Any = model.get_input_embeddings()
    found = embeddings.weight.dtype
    if quantised and dtype not in (AUTO, found):
        name = str(found).removeprefix("torch.")
        raise LoadError(
            f"model folder {folder} is quantised, and transformers leaves what is not quantised in it as {name}: set dtype = {name}"
        )


def _is_part(name: str, modules: Collection[str]) -> bool:
    module, _, last = name.rpartition(".")
    return last in _PARTS and module in modules

"""Weights in eight bits with a scale for every block of them, as DeepSeek-V3's release and its descendants store them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.text.json_file import read_json

_USUAL: Final = (128, 128)
"""Rows and columns of a block where config.json names none."""


def scale_of(name: str) -> str:
    """The name of the tensor that holds the scales of a weight."""
    return f"{name}_scale_inv"


def unscaled(name: str, stored: Tensor, checkpoint: Checkpoint) -> Tensor:
    """The numbers that a stored tensor stands for. Raises LoadError for one of eight bits whose scales are missing or misshapen."""
    scales = scale_of(name)
    if stored.dtype != torch.float8_e4m3fn:
        if scales in checkpoint.names:
            raise LoadError(
                f"model folder {checkpoint.folder}: {name} is {stored.dtype} with scales, expected float8_e4m3fn"
            )
        return stored
    if scales not in checkpoint.names:
        raise LoadError(
            f"model folder {checkpoint.folder}: {name} is quantised ({stored.dtype}) and lacks its scales {scales}"
        )
    scale = checkpoint.read([scales])[scales]
    rows, columns = _block(checkpoint)
    expected = (-(-stored.shape[0] // rows), -(-stored.shape[1] // columns)) if stored.ndim == 2 else ()
    if tuple(scale.shape) != expected:
        raise LoadError(f"model folder {checkpoint.folder}: {scales} is {list(scale.shape)}, expected {list(expected)}")
    full = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return stored.float() * full[: stored.shape[0], : stored.shape[1]]


def _block(checkpoint: Checkpoint) -> tuple[int, int]:
    facts = read_json(checkpoint.folder / "config.json")
    method: Any = facts.get("quantization_config") or (facts.get("text_config") or {}).get("quantization_config") or {}
    rows, columns = method.get("weight_block_size") or _USUAL
    return int(rows), int(columns)

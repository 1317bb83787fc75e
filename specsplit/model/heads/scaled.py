"""Weights in eight bits and their scales: of blocks, as DeepSeek-V3's release and its descendants store them, or of rows."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model.heads.checkpoint import Checkpoint
from specsplit.text.json_file import read_json

_OF_BLOCKS: Final = "_scale_inv"
_OF_ROWS: Final = "_scale"
"""The name that compressed-tensors gives scales of rows, or one of the whole, as in GLM-4.5-FP8."""
_USUAL: Final = (128, 128)
"""Rows and columns of a block where config.json names none."""


def scales_of(name: str) -> tuple[str, str]:
    """The names that the tensor with the scales of a weight may have."""
    return f"{name}{_OF_BLOCKS}", f"{name}{_OF_ROWS}"


def unscaled(name: str, stored: Tensor, checkpoint: Checkpoint) -> Tensor:
    """The numbers that a stored tensor stands for. Raises LoadError for one of eight bits whose scales are missing or misshapen."""
    found = next((each for each in scales_of(name) if each in checkpoint.names), None)
    if stored.dtype != torch.float8_e4m3fn:
        if found is not None:
            raise LoadError(
                f"model folder {checkpoint.folder}: {name} is {stored.dtype} with scales, expected float8_e4m3fn"
            )
        if stored.dtype.itemsize == 1 and stored.dtype != torch.bool:
            raise LoadError(
                f"model folder {checkpoint.folder}: {name} is {stored.dtype}, expected float8_e4m3fn with scales, or "
                "numbers of 16 or 32 bits"
            )
        return stored
    if found is None:
        raise LoadError(
            f"model folder {checkpoint.folder}: {name} is quantised ({stored.dtype}) and lacks its scales, {scales_of(name)[0]}"
        )
    scale = checkpoint.read([found])[found].float()
    return stored.float() * (_of_blocks if found.endswith(_OF_BLOCKS) else _of_rows)(found, scale, stored, checkpoint)


def _of_blocks(name: str, scale: Tensor, stored: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Scales of blocks -> of every number."""
    rows, columns = _block(checkpoint)
    _require(name, scale, [[-(-stored.shape[0] // rows), -(-stored.shape[-1] // columns)]], checkpoint)
    full = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return full[: stored.shape[0], : stored.shape[-1]]


def _of_rows(name: str, scale: Tensor, stored: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Scales of rows, or one of all -> of every row."""
    _require(name, scale, [[stored.shape[0], 1], [1], []], checkpoint)
    return scale


def _require(name: str, scale: Tensor, shapes: list[list[int]], checkpoint: Checkpoint) -> None:
    if list(scale.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise LoadError(f"model folder {checkpoint.folder}: {name} is {list(scale.shape)}, expected {expected}")


def _block(checkpoint: Checkpoint) -> tuple[int, int]:
    facts = read_json(checkpoint.folder / "config.json")
    method: Any = facts.get("quantization_config") or (facts.get("text_config") or {}).get("quantization_config") or {}
    rows, columns = method.get("weight_block_size") or _USUAL
    return int(rows), int(columns)

"""Between numpy on the host and tensors on the device: there without waiting, and back in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NUMPY: Final = {torch.int64: np.int64, torch.float64: np.float64, torch.float32: np.float32, torch.bool: np.bool_}


def pinned(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the host, in memory that a GPU copies from by itself; the array's own memory if the device is no GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the device; the array's own memory if that is the CPU."""
    return pinned(array, device).to(device, non_blocking=True)


def on_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Contiguous tensors of one device as arrays, by one copy of all their bytes; their own memory if the device is the CPU."""
    if not tensors or tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    return unpacked(packed(tensors).cpu().numpy(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of contiguous tensors, uint8, end to end."""
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


def unpacked(raw: NDArray[np.uint8], like: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Take apart what was packed of tensors like these."""
    parts = np.split(raw, np.cumsum([tensor.nbytes for tensor in like])[:-1])
    return [
        np.frombuffer(part.tobytes(), _NUMPY[tensor.dtype]).reshape(tensor.shape)
        for tensor, part in zip(like, parts, strict=True)
    ]

"""From numpy on the host to a tensor on the device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def pinned(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the host, in memory that a GPU copies from by itself; the array's own memory if the device is no GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the device; the array's own memory if that is the CPU."""
    return pinned(array, device).to(device, non_blocking=True)

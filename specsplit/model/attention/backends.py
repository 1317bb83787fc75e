"""Ways to attend, by name, and what is in the way of each. Which of them a model gets: see `choosing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from specsplit.errors import LoadError
from specsplit.model.attention import native_attention
from specsplit.model.attention.flashinfer import attention as flashinfer
from specsplit.model.attention.interface import BackendFactory
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.attention.triton import attention as triton
from specsplit.model.pages.kv import KVCache

BACKENDS: Final[dict[str, BackendFactory]] = {
    "torch": TorchAttention,
    "native": native_attention.NativeAttention,
    "flashinfer": flashinfer.FlashInferAttention,
    "triton": triton.TritonAttention,
}
"""By name."""
_OBSTACLES_ON: Final[dict[str, Callable[[torch.device], str | None]]] = {
    "native": native_attention.obstacle_on,
    "flashinfer": flashinfer.obstacle,
    "triton": triton.obstacle_on,
}
OBSTACLES: Final[dict[str, Callable[[KVCache], str | None]]] = {
    "native": native_attention.obstacle,
    "flashinfer": lambda kv: flashinfer.obstacle(kv.device, kv.dtype, kv.geometry, kv.stored),
    "triton": triton.obstacle,
}


def check_backend(name: str, device: torch.device) -> None:
    """Raise LoadError, saying what to do, for a name that is none of them, or one that cannot be had on `device`."""
    if name != "auto" and name not in BACKENDS:
        known = ", ".join(map(repr, ("auto", *BACKENDS)))
        raise LoadError(f"attention backend {name!r} is not there; expected one of {known}")
    if name in _OBSTACLES_ON:
        _refuse(name, _OBSTACLES_ON[name](device))


def obstacle_over(name: str, kv: KVCache) -> str | None:
    """Why a backend cannot attend over `kv`, and what to do; None: it can, if it can be set up."""
    return OBSTACLES[name](kv) if name in OBSTACLES else None


def require_backend(name: str, kv: KVCache) -> None:
    """Raise LoadError as `check_backend` does, or if a backend cannot attend over `kv`."""
    check_backend(name, kv.device)
    _refuse(name, obstacle_over(name, kv))


def _refuse(name: str, problem: str | None) -> None:
    if problem is not None:
        raise LoadError(f"attention = {name} cannot be had: {problem}, or take attention = auto or torch")

"""Ways to attend, by name, and which of them a model gets."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

BACKENDS: Final[dict[str, BackendFactory]] = {
    "torch": TorchAttention,
    "native": native_attention.NativeAttention,
    "flashinfer": flashinfer.FlashInferAttention,
    "triton": triton.TritonAttention,
}
"""By name. `auto` is native or torch on a CPU, and on a GPU the faster of flashinfer and triton: see `choosing`."""
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


def choose_backend(name: str, kv: KVCache) -> str:
    """The name of the backend that attends over `kv`. Raises LoadError as `check_backend` does, or if this KV is not for it."""
    check_backend(name, kv.device)
    if name in OBSTACLES:
        _refuse(name, OBSTACLES[name](kv))
    if name != "auto":
        return name
    for other in OBSTACLES:
        if (why := obstacle_over(other, kv)) is None:
            return other
        _log.debug("attention = auto does not take %s: %s", other, why)
    return "torch"


def _refuse(name: str, problem: str | None) -> None:
    if problem is not None:
        raise LoadError(f"attention = {name} cannot be had: {problem}, or take attention = auto or torch")

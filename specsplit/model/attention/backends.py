"""Ways to attend, by name, and which of them a model gets."""

from __future__ import annotations

import logging
from typing import Final

import torch

from specsplit.errors import LoadError
from specsplit.model.attention import native_attention
from specsplit.model.attention.flashinfer.attention import FlashInferAttention, obstacle
from specsplit.model.attention.interface import BackendFactory
from specsplit.model.attention.native_attention import NativeAttention
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.pages.kv import KVCache

_log = logging.getLogger(__name__)

BACKENDS: Final[dict[str, BackendFactory]] = {
    "torch": TorchAttention,
    "native": NativeAttention,
    "flashinfer": FlashInferAttention,
}
"""By name. `auto` is flashinfer or native, where one of them can be had, and torch elsewhere."""


def check_backend(name: str, device: torch.device) -> None:
    """Raise LoadError, saying what to do, for a name that is none of them, or one that cannot be had on `device`."""
    if name != "auto" and name not in BACKENDS:
        known = ", ".join(map(repr, ("auto", *BACKENDS)))
        raise LoadError(f"attention backend {name!r} is not there; expected one of {known}")
    if name == "flashinfer":
        _refuse(name, obstacle(device))
    if name == "native":
        _refuse(name, native_attention.obstacle_on(device))


def choose_backend(name: str, kv: KVCache) -> str:
    """The name of the backend that attends over `kv`. Raises LoadError as `check_backend` does, or if this KV is not for it."""
    check_backend(name, kv.device)
    if name == "torch":
        return name
    obstacles = {
        "native": lambda: native_attention.obstacle(kv),
        "flashinfer": lambda: obstacle(kv.device, kv.dtype, kv.geometry, kv.stored),
    }
    if name in obstacles:
        _refuse(name, obstacles[name]())
        return name
    for other, problem in obstacles.items():
        if (why := problem()) is None:
            return other
        _log.debug("attention = auto does not take %s: %s", other, why)
    return "torch"


def _refuse(name: str, problem: str | None) -> None:
    if problem is not None:
        raise LoadError(f"attention = {name} cannot be had: {problem}, or take attention = auto or torch")

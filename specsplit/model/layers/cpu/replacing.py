"""Which modules of a model are replaced, and how it is made sure that nothing else changes.

A module is recognised by its parts, and what is to stand for it has to give the same numbers for a few rows of chance, with the module's
own weights. What is not recognised, or does not agree, stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.layers.cpu.attention import RotaryAttention
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.mlp import GatedMlp
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.recurrent import RecurrentModule
from specsplit.model.layers.sharded import ShardedMlp

_log = logging.getLogger(__name__)

_TOLERANCE: Final = 1e-4
"""Largest difference in float32, as a share of the largest number."""
_TOKENS: Final = 5
_SCALES: Final = (1e-3, 1, 30, 1000)
"""Factors for the rows that are tried: large ones show what is cut off above a limit, small ones what is added to a square."""

_SHORT_CONTEXT: Final = 2048

_Like = Callable[[nn.Module], nn.Module | None]
_Call = Callable[[nn.Module, Tensor], Tensor]


@torch.inference_mode()
def replace_layers(root: nn.Module, rotary: nn.Module | None = None, *, linear: bool = False) -> int:
    """Replace what can be of the modules below `root`, in place -> how many were.

    `rotary` makes cos and sin of positions for the attention modules below; where a module has a `rotary_emb` of its own, that does.
    linear: linear layers outside of decoder layers too, which are called, and of which nothing else is used. The weights of what is
    replaced are given up as it goes.
    """
    rotary = getattr(root, "rotary_emb", rotary)
    count = 0
    for name, child in list(root.named_children()):
        # Ranks run what is in a sharded MLP by themselves, and recurrent modules use more of their parts than that they can be called.
        if isinstance(child, ShardedMlp) or isinstance(child.forward, RecurrentModule):
            continue
        replacement = _replacement(child, rotary) or (_agreeing(child, PackedLinear.like, _called) if linear else None)
        if replacement is None:
            count += replace_layers(child, rotary, linear=linear and not hasattr(child, "self_attn"))
        else:
            setattr(root, name, replacement)
            count += 1
    return count


@torch.inference_mode()
def packed(linear: nn.Module) -> nn.Module:
    """What may stand for a linear layer that is called, and of which nothing else is used; the layer itself, where nothing may."""
    return _agreeing(linear, PackedLinear.like, _called) or linear


def _replacement(module: nn.Module, rotary: nn.Module | None) -> nn.Module | None:
    return (
        _agreeing(module, RmsNorm.like, _called)
        or _agreeing(module, GatedMlp.like, _called)
        or (None if rotary is None else _agreeing(module, RotaryAttention.like, _Attending(rotary)))
    )


def _agreeing(module: nn.Module, like: _Like, call: _Call) -> nn.Module | None:
    """What `like` makes of a module, if it gives the same numbers in float32; None: nothing does."""
    try:
        replacement = like(module)
        if replacement is None:
            return None
        first = next(module.parameters())
        exact = first.dtype == torch.float32
        one = module if exact else deepcopy(module).float()
        other = replacement if exact else like(one)
        rows = torch.randn(1, _TOKENS, first.shape[-1], generator=torch.Generator().manual_seed(0))
        agree = other is not None and all(_close(call(one, at * rows), call(other, at * rows)) for at in _SCALES)
    except Exception as error:  # noqa: BLE001 - code of others, on a processor that may lack what it needs: the module stays
        _log.debug("%s is not replaced: %s", type(module).__name__, error)
        return None
    if not agree:
        _log.debug("%s is not replaced: it does something else than its parts say", type(module).__name__)
    return replacement if agree else None


def _close(own: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same but for rounding; NaN is not."""
    if own.shape != other.shape or own.dtype != other.dtype:
        return False
    return bool((own - other).abs().max() <= _TOLERANCE * own.abs().max())


def _called(module: nn.Module, rows: Tensor) -> Tensor:
    return module(rows)


class _Attending:
    """Calls an attention module as a decoder layer does, at the first positions of the context and at the last."""

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary: Final = rotary
        self._context: Final = int(getattr(rotary, "max_seq_len_cached", _SHORT_CONTEXT))

    def __call__(self, module: nn.Module, rows: Tensor) -> Tensor:
        positions = torch.arange(rows.shape[1])
        positions[rows.shape[1] // 2 :] += self._context - rows.shape[1]
        embeddings = self._rotary(rows, positions[None])
        return module(hidden_states=rows, position_embeddings=embeddings, attention_mask=None, forward_batch=Causal())[
            0
        ]


class Causal:
    """A forward of one text whose KV is nowhere else (a ForwardBatch)."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        ).transpose(1, 2)

"""How a transformers model reaches our KV: one function in its AttentionInterface, one keyword through its forward.

A model loaded with `attn_implementation=NAME` calls `_attention` in every layer and hands it every keyword that its own forward
was called with (some architectures hand on none: they are refused). Ours is `forward_batch`: it knows what this forward's queries attend
to. With a name that transformers has no
mask function for, no mask is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface

from specsplit.errors import LoadError
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets, StaticAttention

NAME: Final = "specsplit"


class ForwardBatch(Protocol):
    """What one forward carries to its attention layers."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """query [1, H, T, D], key and value [1, kv_heads, T, D] of the new tokens, as a layer of transformers has them -> [1, T, H, D].

        `scaling` None means D ** -0.5. `extras` is whatever else the architecture tells its attention (sliding_window, softcap
        ...): looked at once at load, where anything that would change the result is refused.
        """
        ...


class TrialForward:
    """A forward of no sequence (a ForwardBatch): its one token stands for none, sees nothing and leaves nothing."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return torch.zeros_like(query).transpose(1, 2)


def tokens_first(heads_first: Tensor) -> Tensor:
    """[1, H, T, D] -> [T, H, D], without a copy."""
    return heads_first[0].transpose(0, 1)


class AttentionBackend(Protocol):
    """A way to attend over paged KV. No policy: batch in, numbers out."""

    def plan(self, batch: InputBatch) -> ForwardBatch:
        """Lay a batch out, once per forward: everything that is the same in all layers."""
        ...

    def static(self, tables: PageTables, buckets: Buckets) -> StaticAttention | None:
        """How forwards attend that are captured for these buckets; None: they cannot be."""
        ...


class BackendFactory(Protocol):
    """How a backend is made for one KV cache."""

    def __call__(self, kv: KVCache, group: int, page_size: int) -> AttentionBackend:
        """`group`: query heads per KV head. `page_size`: slots of one page. Raises LoadError if it cannot be set up."""
        ...


class _AttentionLayer(Protocol):
    layer_idx: int


def _attention(
    module: _AttentionLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    forward_batch: ForwardBatch | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    if forward_batch is None:
        raise LoadError(
            f"{type(module).__name__} is not told what its model was called with, so its attention cannot be paged: transformers' own "
            "code of it hands on no keywords"
        )
    width, missing = value.shape[-1], key.shape[-1] - value.shape[-1]
    if missing > 0:  # multi-head latent attention: its values are stored as wide as its keys, with zeros behind
        value = pad(value, (0, missing))
    out = forward_batch.attend(module.layer_idx, query, key, value, scaling, extras)
    return out if missing <= 0 else out[..., :width], None


def keep_from_compiler() -> None:
    """Have torch.compile leave attention as it is: what a layer attends to is another object in every forward."""
    AttentionInterface.register(NAME, torch.compiler.disable(_attention))


AttentionInterface.register(NAME, _attention)

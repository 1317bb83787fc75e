"""How a transformers model reaches our KV: one function in its AttentionInterface, one keyword through its forward.

A model loaded with `attn_implementation=NAME` calls `_attention` in every layer and hands it every keyword that its own forward
was called with. Ours is `forward_batch`: it knows what this forward's queries attend to. With a name that transformers has no mask function
for, no mask is built.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from specsplit.errors import LoadError
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.kv import KVCache
from specsplit.model.pages.tables import PageTables

if TYPE_CHECKING:
    from specsplit.model.graphs import Buckets, StaticAttention

NAME: Final = "specsplit"
OTHERS: Final = ": choose another model, docs/targets.md lists those that are served"
"""What to do about a model that is not."""
TOLD: Final = "specsplit_told"
"""For a look at load: the ForwardBatch is told of the `mask` that the model makes for the layer, a ToldMask or None."""
AROUND: Final = "specsplit_around"
"""The attribute of an attention module that has something standing between it and the ForwardBatch: an Around."""


class ForwardBatch(Protocol):
    """What one forward carries to its attention layers."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        """Attend to the new tokens as a layer of transformers has them: query [1, H, T, D], key [1, kv_heads, T, D] and value
        [1, kv_heads, T, value width] -> [1, T, H, value width], contiguous.

        `scaling` None means D ** -0.5. `extras` is whatever else the architecture tells its attention (sliding_window, softcap
        ...): looked at once at load, where anything that would change the result is described by a `Layer` or refused. What a layer learnt
        of it, as its sinks, is taken from here.
        """
        ...


class Place(NamedTuple):
    """Where keys and values of the new tokens of a layer are kept."""

    keys: Tensor
    """[slots, kv_heads, D]; a slot's numbers lie side by side."""
    values: Tensor
    slots: Tensor
    """int64 [T]"""


@runtime_checkable
class StoringForward(Protocol):
    """A ForwardBatch that lets somebody else write keys and values to their place."""

    def place(self, layer: int, shape: tuple[int, int]) -> Place | None:
        """Where keys and values of `shape` (kv_heads, D) of a layer go; None: they are to be handed to `attend`."""
        ...

    def attend_stored(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        """Attend as `attend` does, with query [T, H, D], to keys and values that are in their place -> [1, T, H, D]."""
        ...


class Around(Protocol):
    """What stands between an attention module and a forward: it has the forward attend to something else, and makes of that what it was
    asked for."""

    def attend(
        self,
        forward_batch: ForwardBatch,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        extras: dict[str, Any],
    ) -> Tensor:
        """Do what `ForwardBatch.attend` does."""
        ...


class TrialForward:
    """A forward of no sequence (a ForwardBatch): its one token stands for none, sees nothing and leaves nothing."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(frozen=True, slots=True, eq=False)
class ReadForward:
    """A forward of which the last layer's hidden states are read at some tokens alone (a ForwardBatch)."""

    all: ForwardBatch
    """Attends at all new tokens, in any layer."""
    read: ForwardBatch
    """Attends at those tokens alone, to keys and values of all, which it stores."""
    last: int
    """The last layer."""
    tokens: Tensor
    """[n] those tokens, as indices into T."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return self.all.attend(layer, query, key, value, scaling, extras)


def tokens_first(heads_first: Tensor) -> Tensor:
    """[1, H, T, D] -> [T, H, D], without a copy."""
    return heads_first[0].transpose(0, 1)


class AttentionBackend(Protocol):
    """A way to attend over paged KV. No policy: batch in, numbers out."""

    def plan(self, batch: InputBatch) -> ForwardBatch:
        """Lay a batch out, once per forward: everything that is the same in all layers."""
        ...

    def plan_read(self, batch: InputBatch) -> ForwardBatch | None:
        """Lay out what attends with queries [1, H, n, D] of the tokens `batch.logits_at` alone, to keys and values of all new tokens, which
        it stores; None: it attends with all or none."""
        ...

    def static(self, tables: PageTables, buckets: Buckets) -> StaticAttention | None:
        """How forwards attend that are captured for these buckets; None: they cannot be."""
        ...


@runtime_checkable
class DevicePlanner(Protocol):
    """A backend that takes batches of which only the device knows what their rows are."""

    def plan_on_device(self, batch: DeviceBatch) -> ForwardBatch:
        """Lay a batch out, once per forward, without waiting for the device, and so that it can be captured."""
        ...


class BackendFactory(Protocol):
    """How a backend is made for one KV cache."""

    def __call__(self, kv: KVCache, page_size: int) -> AttentionBackend:
        """`page_size`: slots of one page. Raises LoadError if it cannot be set up."""
        ...


_under_way: ContextVar[ForwardBatch] = ContextVar("forward_batch")


def run_model(model: PreTrainedModel, forward_batch: ForwardBatch, **call: Any) -> Any:
    """Run a model whose attention layers attend as `forward_batch` does.

    It goes along as a keyword. The attention of architectures that hand on none finds it in the context.
    """
    token = _under_way.set(forward_batch)
    try:
        return model(**call, forward_batch=forward_batch)
    finally:
        _under_way.reset(token)


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
        forward_batch = _under_way.get()
    around: Around | None = vars(module).get(AROUND)
    if around is not None:
        return around.attend(forward_batch, module.layer_idx, query, key, value, scaling, extras), None
    return forward_batch.attend(module.layer_idx, query, key, value, scaling, extras), None


def keep_from_compiler() -> None:
    """Have torch.compile leave attention as it is: what a layer attends to is another object in every forward."""
    AttentionInterface.register(NAME, torch.compiler.disable(_attention))


def _attention_with_mask(
    module: _AttentionLayer, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **extras: Any
) -> tuple[Tensor, None]:
    return _attention(module, query, key, value, None, *args, mask=attention_mask, **extras)


class ToldMask(NamedTuple):
    """Which tokens a layer sees, as its model says it where it is asked for a mask."""

    sees: Callable[[Any, Any, Any, Any], Any]
    """Of batch, head, and indices of query and key tokens: whether the one sees the other."""
    size: int | None
    """Of the window or the chunk, where there is one."""

    def __getattr__(self, name: str) -> Any:
        """Refuses a model that takes it for a tensor: what it makes of its mask is attention that nobody here knows."""
        raise LoadError(f"it changes its attention mask in its layers, and what they then see is not known{OTHERS}")


def _told_mask(
    *, mask_function: Callable[[Any, Any, Any, Any], Any], local_size: int | None = None, **_: Any
) -> ToldMask:
    return ToldMask(mask_function, local_size)


AttentionInterface.register(NAME, _attention)
AttentionInterface.register(TOLD, _attention_with_mask)
AttentionMaskInterface.register(TOLD, _told_mask)

"""Adapters put into a model: each linear layer that any of them adds to is replaced by one that knows whose tokens are whose."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from specsplit.errors import LoadError
from specsplit.model.adapters.folder import AdapterWeights, adapters_in, read_adapter
from specsplit.model.adapters.fused import fuse_layers
from specsplit.model.adapters.linear import AdaptedLinear
from specsplit.model.adapters.shares import Share, Shares, shares_of
from specsplit.model.adapters.static import AdaptedForward, StaticAdapters
from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.graphs import Buckets, StaticAttention
from specsplit.model.layers.cpu import packed
from specsplit.model.pages.input_batch import InputBatch
from specsplit.values import Adapter

_log = logging.getLogger(__name__)

_WHOLE: Final = "language_model."
"""In the names of a multimodal model, whose text model alone is served."""
_CALLED: Final = frozenset(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
"""Linear layers that are called, and of which nothing else is used, in all architectures."""


class Adapters:
    """All adapters of one model, which may have none. Used by one thread at a time, as the model is."""

    def __init__(self) -> None:
        self.known: tuple[Adapter, ...] = ()
        """By their numbers, which begin with 1: 0 is the base."""
        self._shares: Final = Shares()
        self._linears: Final[list[AdaptedLinear]] = []
        self._adds_to: Final[list[frozenset[str]]] = []
        """Names of the layers that each adds to, by adapter."""
        self._stacked = False

    def __len__(self) -> int:
        return len(self.known)

    def forward(self, batch: InputBatch) -> AbstractContextManager[None]:
        """While inside, a forward of the model computes each row with its adapter. Raises ValueError for one that is not there."""
        numbers = [row.adapter for row in batch.rows]
        most = max(numbers)
        if not most:
            return nullcontext()
        if most > len(self.known):
            raise ValueError(f"a row with adapter {most} of {len(self.known)}")
        return self._sharing(len(batch.tokens), shares_of(numbers, batch.starts, batch.queries, batch.tokens.device))

    @contextmanager
    def captured(self, tokens: int, forward_batch: ForwardBatch) -> Iterator[ForwardBatch]:
        """While inside, a forward of so many tokens is captured -> what attends in it."""
        if not isinstance(forward_batch, AdaptedForward):
            yield forward_batch
            return
        self._shares.begin_captured(tokens, forward_batch.segments)
        try:
            yield forward_batch.attention
        finally:
            self._shares.begin(0, ())

    def static(self, attention: StaticAttention, buckets: Buckets, device: torch.device) -> StaticAttention:
        """How captured forwards attend, which also go by the adapters of rows, these in the place of others; without any, by none."""
        inner = attention.attention if isinstance(attention, StaticAdapters) else attention
        if not self.known:
            return inner
        assert self.captures, "only kernels for a GPU read whose tokens are whose from memory"
        return StaticAdapters(inner, buckets, len(self), device)

    @property
    def captures(self) -> bool:
        """Whether forwards can be captured: without adapters, and where kernels for a GPU add what they add."""
        return not self.known or self._stacked

    def alone(self, adapter: int, tokens: int) -> AbstractContextManager[None]:
        """While inside, a forward of so many tokens is one adapter's, or with 0 the base's."""
        return self._sharing(tokens, [Share(adapter, slice(0, tokens))]) if adapter else nullcontext()

    def put(self, model: PreTrainedModel, weights: AdapterWeights) -> None:
        """Put one more into a model. Raises LoadError, naming it, if it does not fit."""
        number, names = len(self.known) + 1, set[str]()
        try:
            for name, low_rank in weights.modules.items():
                linear = self._linear(model, name)
                linear.add(number, low_rank)
                names.add(linear.name)
        except LoadError as error:
            raise LoadError(f"adapter {weights.adapter.name}: {error}") from error
        self.known = (*self.known, weights.adapter)
        self._adds_to.append(frozenset(names))

    def kinds(self) -> Iterator[int]:
        """The first adapter of all that add to the same layers, by its number."""
        met: set[frozenset[str]] = set()
        for number, layers in enumerate(self._adds_to, 1):
            if layers not in met:
                met.add(layers)
                yield number

    def layers_of(self, adapter: int) -> list[AdaptedLinear]:
        """The layers that an adapter adds to, but those that were fused."""
        return [linear for linear in self._linears if adapter in linear.adapters]

    def fuse(self, model: PreTrainedModel) -> None:
        """Have a CPU run decoder layers with adapters as kernels, where it does without them. To be called before others are replaced."""
        fused = fuse_layers(model, len(self), self._shares) if self.known else set[AdaptedLinear]()
        self._linears[:] = [linear for linear in self._linears if linear not in fused]

    def stack(self) -> None:
        """Have a GPU add in one go what all of them add to a layer. Imports triton."""
        for linear in self._linears:
            linear.stack(len(self))
        self._stacked = True

    def pack(self, model: nn.Module) -> None:
        """Have a CPU multiply by the weights of adapted layers, and of those beside them, as by those of others: see `PackedLinear`."""
        for parent in list(model.modules()):
            children = dict(parent.named_children())
            adapted = [child for child in children.values() if isinstance(child, AdaptedLinear)]
            for child in adapted:
                child.inner = packed(child.inner)
                child.pack(len(self))
            if adapted:
                _pack_beside(parent, children)

    @contextmanager
    def _sharing(self, tokens: int, shares: Sequence[Share]) -> Iterator[None]:
        self._shares.begin(tokens, shares)
        try:
            yield
        finally:
            self._shares.begin(0, ())

    def _linear(self, model: PreTrainedModel, name: str) -> AdaptedLinear:
        """What stands for a linear layer, by the name that an adapter has for it."""
        path, module = _found(model, name)
        if isinstance(module, AdaptedLinear):
            return module
        if module is model.get_output_embeddings():
            raise LoadError(f"it adapts {name}, which computes logits: only layers below it can be adapted")
        if type(module) is not nn.Linear:
            raise LoadError(f"it adapts {name}, which is a {type(module).__name__}: only linear layers can be adapted")
        adapted = AdaptedLinear(path, module, self._shares)
        self._linears.append(adapted)
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, adapted)
        return adapted


def adapt(model: PreTrainedModel, folder: Path) -> Adapters:
    """Put all adapters of a folder into a model, by name. Raises LoadError, naming the adapter, for one that cannot be served."""
    if getattr(model, "hf_quantizer", None) is not None:
        raise LoadError("a target whose weights are quantised takes no adapters: leave adapters_dir out")
    adapters = Adapters()
    with torch.no_grad():
        for each in adapters_in(folder):
            adapters.put(model, read_adapter(each))
    _log.info(
        "%d adapters: %s; latents are not kept",
        len(adapters),
        ", ".join(each.name for each in adapters.known),
    )
    return adapters


def _found(model: PreTrainedModel, name: str) -> tuple[str, nn.Module]:
    """A module and its name in the model, by that in the whole, if only the text model of a multimodal one is served."""
    for path in (name, name.replace(_WHOLE, "", 1)):
        with suppress(AttributeError):
            return path, model.get_submodule(path)
    raise LoadError(
        f"it adapts {name}, and {type(model).__name__} has no module of that name: it was trained for another model"
    )


def _pack_beside(parent: nn.Module, children: Mapping[str, nn.Module]) -> None:
    for name in _CALLED & set(children):
        if type(children[name]) is nn.Linear:
            setattr(parent, name, packed(children[name]))

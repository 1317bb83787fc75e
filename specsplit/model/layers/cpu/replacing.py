"""Which modules of a model are replaced, and how it is made sure that nothing else changes.

A module is recognised by its parts, and what is to stand for it has to give the same numbers for a few rows of chance, with the module's
own weights. What is not recognised, or does not agree, stays as it is. Of modules that differ by their weights alone, as the layers of a
model do, the first is tried for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import deepcopy
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from specsplit.model.attention.interface import Place
from specsplit.model.layers.cpu.attention import RotaryAttention
from specsplit.model.layers.cpu.decoder import NativeLayer
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.layers.cpu.mlp import mlp_like
from specsplit.model.layers.cpu.norm import RmsNorm
from specsplit.model.layers.recurrent import RecurrentModule
from specsplit.model.layers.sharded import ShardedMlp
from specsplit.model.tensors.transfer import on_device

_log = logging.getLogger(__name__)

_TOLERANCE: Final = 1e-4
"""Largest difference in float32, as a share of the largest number."""
_TOKENS: Final = 5
_SCALES: Final = (1e-3, 1, 30, 1000)
"""Factors for the rows that are tried: large ones show what is cut off above a limit, small ones what is added to a square."""

_SHORT_CONTEXT: Final = 2048

_OWN: Final = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "layer_idx")
_PLAIN: Final = (bool, int, float, str, torch.dtype, torch.Size, NoneType)

_Like = Callable[[nn.Module], nn.Module | None]
_Call = Callable[[nn.Module, Tensor], Tensor]


class WholeLayer(Protocol):
    """What may stand for a decoder layer whose parts were replaced."""

    sizes: Sequence[Any]
    """The width of a hidden state, and what else its parts were tried with."""


class Kit(NamedTuple):
    """What may stand for which modules, each None where nothing may."""

    parts: Sequence[_Like]
    """For norms and MLPs."""
    attention: _Like
    layer: Any
    """The class of a WholeLayer, whose `like` makes one."""
    linear: _Like


CPU: Final = Kit((RmsNorm.like, mlp_like), RotaryAttention.like, NativeLayer, PackedLinear.like)


@torch.inference_mode()
def replace_layers(root: nn.Module, kit: Kit = CPU, *, linear: bool = False) -> int:
    """Replace what can be of the modules below `root`, in place -> how many were.

    linear: linear layers outside of decoder layers too, which are called, and of which nothing else is used. The weights of what is
    replaced are given up as it goes.
    """
    return _Replacing(kit).below(root, None, linear=linear)


@torch.inference_mode()
def packed(linear: nn.Module) -> nn.Module:
    """What may stand for a linear layer that is called, and of which nothing else is used; the layer itself, where nothing may."""
    return _Replacing(CPU).agreeing(linear, PackedLinear.like, _called) or linear


class _Replacing:
    """One walk through a model. It remembers what it has tried."""

    def __init__(self, kit: Kit) -> None:
        self._kit: Final = kit
        self._agree: Final[dict[object, bool]] = {}
        self._met: Final[list[object]] = []
        """Objects that are known by where they lie, so that nothing else comes to lie there."""

    def below(self, root: nn.Module, rotary: nn.Module | None, *, linear: bool) -> int:
        """Replace modules below `root`, as `replace_layers` does.

        `rotary` makes cos and sin of positions for the attention modules below; where a module has a `rotary_emb` of its own, that does.
        """
        rotary = getattr(root, "rotary_emb", rotary)
        count = 0
        for name, child in list(root.named_children()):
            # Ranks run what is in a sharded MLP by themselves, and recurrent modules use more of their parts than that they can be called.
            if isinstance(child, ShardedMlp) or isinstance(child.forward, RecurrentModule):
                continue
            replacement = self._replacement(child, rotary)
            if replacement is None and linear:
                replacement = self.agreeing(child, self._kit.linear, _called)
            if replacement is None:
                count += self.below(child, rotary, linear=linear and not hasattr(child, "self_attn"))
                replacement = None if rotary is None else self.agreeing(child, self._kit.layer.like, _Passing(rotary))
            else:
                count += 1
            if replacement is not None:
                setattr(root, name, replacement)
        return count

    def _replacement(self, module: nn.Module, rotary: nn.Module | None) -> nn.Module | None:
        parts = (self.agreeing(module, like, _called) for like in self._kit.parts)
        found = next((part for part in parts if part is not None), None)
        if found is None and rotary is not None:
            return self.agreeing(module, self._kit.attention, _Attending(rotary))
        return found

    def agreeing(self, module: nn.Module, like: _Like, call: _Call) -> nn.Module | None:
        """What `like` makes of a module, if it gives the same numbers in float32; None: nothing does."""
        name = type(module).__name__
        try:
            replacement = like(module)
            if replacement is None:
                return None
            shape = (like, getattr(call, "rotary", None), self._kind(module, replacement))
            if shape not in self._agree:
                self._agree[shape] = False  # if it raises
                sizes = _sizes(replacement, self._kit)
                width = None if sizes is None else sizes[0]
                self._agree[shape], telling = _same(module, replacement, like, call, width)
                if not telling and self._agree.pop(shape):
                    return replacement
        except Exception as error:  # noqa: BLE001 - code of others, on a processor that may lack what it needs: the module stays
            _log.debug("%s is not replaced: %s", name, error)
            return None
        if not self._agree[shape]:
            _log.debug("%s is not replaced: it does something else than its parts say", name)
            return None
        return replacement

    def _kind(self, module: nn.Module, replacement: nn.Module) -> Hashable:
        """What modules have in common of which one is tried for all."""
        if (
            sizes := _sizes(replacement, self._kit)
        ) is not None:  # its parts were tried: what is left is how they are put together
            return type(module), sizes, *_facts(module, self._met)
        return _shape(module, self._met)


def _sizes(replacement: Any, kit: Kit) -> Sequence[Any] | None:
    """What a whole layer says of its sizes; None: it is a part of one."""
    return replacement.sizes if isinstance(replacement, kit.layer) else None


def _same(module: nn.Module, replacement: nn.Module, like: _Like, call: _Call, width: int | None) -> tuple[bool, bool]:
    """Whether both give the same numbers in float32; and whether that says anything of others of the kind, as zeros do not.

    width: of the rows that they read; None: the first parameter says it.
    """
    first = next(module.parameters())
    exact = first.dtype == torch.float32
    one = module if exact else deepcopy(module).float()
    other = replacement if exact else like(one)
    drawn = torch.randn(1, _TOKENS, width or first.shape[-1], generator=torch.Generator().manual_seed(0))
    rows = on_device(drawn.numpy(), first.device)
    if other is None:
        return False, True
    asked = [at * rows for at in _SCALES]
    own = [call(one, each) for each in asked]
    agree = all(_close(found, call(other, each)) for found, each in zip(own, asked, strict=True))
    return agree, any(
        bool(found.any()) and not torch.equal(found, each) for found, each in zip(own, asked, strict=True)
    )


def _shape(module: nn.Module, met: list[object]) -> Hashable:
    """All that makes a module what it is but the numbers of its weights, and the number of its layer.

    What is neither a number nor a word is told apart by which object it is, and is kept in `met`.
    """
    return tuple((name, type(each), *_facts(each, met)) for name, each in module.named_modules())


def _facts(module: nn.Module, met: list[object]) -> Iterator[Hashable]:
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    yield from ((name, tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors)
    yield from (name for name, each in vars(module)["_parameters"].items() if each is None)
    for name, value in vars(module).items():
        if name in _OWN or (isinstance(value, dict) and not value):
            continue
        if isinstance(value, _PLAIN):
            yield name, type(value), value
        else:
            met.append(value)
            yield name, id(value)


def _close(own: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same but for rounding; NaN is not."""
    if own.shape != other.shape or own.dtype != other.dtype:
        return False
    return bool((own - other).abs().max() <= _TOLERANCE * own.abs().max())


def _called(module: nn.Module, rows: Tensor) -> Tensor:
    return module(rows)


class _Passing:
    """Calls a decoder layer as a model does, at the first positions of the context and at the last."""

    def __init__(self, rotary: nn.Module) -> None:
        """`rotary` makes cos and sin of positions."""
        self.rotary: Final = rotary
        self._context: Final = int(getattr(rotary, "max_seq_len_cached", _SHORT_CONTEXT))

    def __call__(self, module: nn.Module, rows: Tensor) -> Tensor:
        positions = torch.arange(rows.shape[1], device=rows.device)
        positions[rows.shape[1] // 2 :] += self._context - rows.shape[1]
        embeddings = self.rotary(rows, positions[None])
        return module(
            hidden_states=rows, position_embeddings=embeddings, attention_mask=None, forward_batch=Causal(rows.device)
        )


class _Attending(_Passing):
    """Calls an attention module as a decoder layer does."""

    def __call__(self, module: nn.Module, rows: Tensor) -> Tensor:
        return super().__call__(module, rows)[0]


class Causal:
    """A forward of one text whose KV is nowhere else (a ForwardBatch, and a StoringForward)."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        self._stored: Place | None = None

    def place(self, layer: int, shape: tuple[int, int]) -> Place:
        """Room for the tokens that are tried, last token first, so that nobody can pass over what slots say."""
        slots = torch.arange(_TOKENS, device=self._device).flip(0)
        keys, values = torch.zeros(2, _TOKENS, *shape, device=self._device)
        self._stored = Place(keys, values, slots)
        return self._stored

    def attend_stored(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        """Attend to what was written there."""
        assert self._stored is not None, "place comes before"
        keys, values, slots = self._stored
        query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (query, keys[slots], values[slots]))
        return self.attend(layer, query, key, value, scaling, {})

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, extras: dict[str, Any]
    ) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        ).transpose(1, 2)

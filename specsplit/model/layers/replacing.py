"""Which modules of a model are replaced, and how it is made sure that nothing else changes.

A module is recognised by its parts, and what is to stand for it has to give the same numbers for a few rows of chance, with the module's
own weights. What is not recognised, or does not agree, stays as it is. Of modules that differ by their weights alone, as the layers of a
model do, the first is tried for all.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from types import NoneType
from typing import Any, Final

import torch
from torch import nn

from specsplit.model.layers.kit import Kit, Like
from specsplit.model.layers.recurrent import RecurrentModule
from specsplit.model.layers.sharded import ShardedMlp
from specsplit.model.layers.trial import Attending, Call, Passing, called, gives_the_same

_log = logging.getLogger(__name__)

_OWN: Final = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "layer_idx")
_PLAIN: Final = (bool, int, float, str, torch.dtype, torch.Size, NoneType)


@torch.inference_mode()
def replace_layers(root: nn.Module, kit: Kit, *, linear: bool = False) -> int:
    """Replace what can be of the modules below `root`, in place -> how many were.

    linear: linear layers outside of decoder layers too, which are called, and of which nothing else is used. The weights of what is
    replaced are given up as it goes.
    """
    return Replacing(kit).below(root, None, linear=linear)


class Replacing:
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
                replacement = self.agreeing(child, self._kit.linear, called)
            if replacement is None:
                count += self.below(child, rotary, linear=linear and not hasattr(child, "self_attn"))
                replacement = None if rotary is None else self.agreeing(child, self._kit.layer.like, Passing(rotary))
            else:
                count += 1
            if replacement is not None:
                setattr(root, name, replacement)
        return count

    def _replacement(self, module: nn.Module, rotary: nn.Module | None) -> nn.Module | None:
        parts = (self.agreeing(module, like, called) for like in self._kit.parts)
        found = next((part for part in parts if part is not None), None)
        if found is None and rotary is not None:
            return self.agreeing(module, self._kit.attention, Attending(rotary))
        return found

    def agreeing(self, module: nn.Module, like: Like, call: Call) -> nn.Module | None:
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
                self._agree[shape], telling = gives_the_same(module, replacement, like, call, width)
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
        sizes = _sizes(replacement, self._kit)
        if sizes is None:
            return _shape(module, self._met)
        return (
            type(module),
            sizes,
            *_facts(module, self._met),
        )  # its parts were tried: what is left is how they are put together


def _sizes(replacement: Any, kit: Kit) -> Sequence[Any] | None:
    """What a whole layer says of its sizes; None: it is a part of one."""
    return replacement.sizes if isinstance(replacement, kit.layer) else None


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

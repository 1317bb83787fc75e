"""All tensors that a model's weights are in: its parameters, what was packed of them for a CPU, and what was made of them for latents.

Weights of another revision are copied into these, tensor by tensor, so that captured graphs, compiled layers and structs of the kernels
in C, which know where they lie, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from specsplit.model.attention.latent import EXPAND


@runtime_checkable
class Packing(Protocol):
    """Made of weights when the model was loaded, and computed with in their place."""

    @property
    def packed_tensors(self) -> list[Tensor]:
        """The tensors that it holds beside parameters and buffers of modules, always in the same order."""
        ...


Held = dict[str, Tensor]
"""Tensors by a name that says in which module they are."""


def held_tensors(model: nn.Module) -> Held:
    """All tensors of a model that come from its weights. What its config alone says, as tables of positions are, is left out."""
    return dict(_tensors(model))


def copy_tensors(source: Held, target: Held) -> None:
    """Copy weights into those of a model with the same names, shapes and types: see `first_difference`."""
    with torch.inference_mode():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def first_difference(served: Held, other: Held) -> str:
    """In what the tensors of another model first differ from those of one that is served, in words; empty if in nothing."""
    for name, tensor in served.items():
        if name not in other:
            return f"it has no {name}"
        if (found := _said(other[name])) != (wanted := _said(tensor)):
            return f"{name} is {found}, expected {wanted}"
    return next((f"it has {name}, which is not served" for name in other if name not in served), "")


def _said(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device.type}".replace("torch.", "")


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        own = vars(module)
        fleeting = own["_non_persistent_buffers_set"]
        buffers = ((name, each) for name, each in own["_buffers"].items() if name not in fleeting)
        for name, tensor in (*own["_parameters"].items(), *buffers):
            if tensor is not None:
                yield f"{path}.{name}", tensor
        for holder in (module, own.get(EXPAND)):
            if isinstance(holder, Packing):
                kind = type(holder).__name__
                yield from ((f"{path} ({kind} {number})", each) for number, each in enumerate(holder.packed_tensors))

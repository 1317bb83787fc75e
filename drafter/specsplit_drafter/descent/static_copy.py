"""Values made of tensors, as copies whose tensors stay where they are: what captured work reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def tensors_of(value: object) -> Iterator[Tensor]:
    """List all tensors of a dataclass of tensors and such dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


def shape_of(value: object) -> Hashable:
    """Describe what two such values must have in common for one to be written over the other: all but the numbers in tensors and lists."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if is_dataclass(value):
        return type(value), tuple(shape_of(getattr(value, field.name)) for field in fields(value))
    return len(value) if isinstance(value, Sequence) else value


def copy_of(value: Any) -> Any:
    """Copy such a value, its tensors too."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: copy_of(getattr(value, field.name)) for field in fields(value)})
    return value


def write(value: object, into: object) -> None:
    """Write a value over the tensors of one of the same shape, without waiting for the device."""
    for target, source in zip(tensors_of(into), tensors_of(value), strict=True):
        target.copy_(source, non_blocking=True)

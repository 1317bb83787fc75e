"""What may stand for which modules of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import nn

Like = Callable[[nn.Module], nn.Module | None]
"""Makes of a module what may stand for it; None: nothing may. Whether it does the same is not looked at."""


class WholeLayer(Protocol):
    """What may stand for a decoder layer whose parts were replaced."""

    sizes: Sequence[Any]
    """The width of a hidden state, and what else its parts were tried with."""


class Kit(NamedTuple):
    """What may stand for which modules, each None where nothing may."""

    parts: Sequence[Like]
    """For norms and MLPs."""
    attention: Like
    layer: Any
    """The class of a WholeLayer, whose `like` makes one."""
    linear: Like

"""torch.compile for the decoder layers of a model, and nothing else of it.

All layers of a class have the same code, so it is compiled once for all of them and for batches of any size, which takes far less than
compiling the model would (see "Reducing torch.compile cold start compilation time with regional compilation" in torch's tutorials). What is
compiled launches kernels like any other code, and is captured in CUDA graphs like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from specsplit.model.attention.interface import keep_from_compiler

Backend = str | Callable[..., Any]
"""One of torch.compile's, by name, or another that makes a callable of a graph and its inputs."""


def compile_layers(layers: Iterable[nn.Module], backend: Backend = "inductor") -> None:
    """Have layers compiled when they are first run.

    Their `forward` is, and not they themselves: hooks that are added later, which take hidden states, would not be called.
    """
    keep_from_compiler()
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)


def leave_layers(layers: Iterable[nn.Module]) -> None:
    """Have layers run again as they did before `compile_layers`."""
    for layer in layers:
        vars(layer).pop("forward", None)

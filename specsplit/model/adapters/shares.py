"""Which tokens of a forward are whose: made once, and read by every adapted layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from specsplit.model.pages.batch import Ints
from specsplit.model.tensors.transfer import on_device

Tokens: TypeAlias = slice | Tensor
"""A run of tokens, or [n] indices of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Tokens that one adapter is for."""

    adapter: int
    """Its number, from 1."""
    tokens: Tokens


@dataclass(slots=True, eq=False)
class Shares:
    """Shares of the forward under way; adapted layers hold on to it."""

    tokens: int = 0
    """T of the forward."""
    adapted: Sequence[Share] = ()
    """One for each adapter that any row asks for; empty: the base computes all of them."""


def shares_of(adapters: Sequence[int], starts: Ints, queries: Ints, device: torch.device) -> list[Share]:
    """Of rows [B] by their adapters (0: the base), where each begins among the tokens of the forward, and how many it has.

    Rows of an adapter that lie side by side are a run, which nothing has to be gathered for.
    """
    numbers = np.asarray(adapters)
    return [
        Share(number, _tokens(starts[own], queries[own], device))
        for number in sorted(set(adapters) - {0})
        for own in (np.flatnonzero(numbers == number),)
    ]


def _tokens(starts: Ints, queries: Ints, device: torch.device) -> Tokens:
    stops = starts + queries
    if bool((starts[1:] == stops[:-1]).all()):
        return slice(int(starts[0]), int(stops[-1]))
    ranges = [np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
    return on_device(np.concatenate(ranges), device)

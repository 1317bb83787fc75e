"""The attention of a model, layer by layer: what each keeps of a token and sees of a text. KV and attention backends go by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Positions = TypeVar("Positions", int, NDArray[np.int64], Tensor)
"""Absolute positions of tokens, on the host or on the device, or that of one."""


@dataclass(frozen=True, slots=True)
class Span:
    """How far back a token sees along its own path: to the first token, a window of the last ones, or where its chunk begins."""

    window: int | None = None
    """Tokens of the window, the own one included."""
    chunk: int | None = None
    """Positions of a chunk; the first begins at position 0."""

    def __str__(self) -> str:
        """What a message calls it."""
        if self.window is not None:
            return f"a window of {self.window} tokens"
        return "all tokens" if self.chunk is None else f"chunks of {self.chunk} tokens"

    def reach(self, positions: Positions) -> Positions:
        """Tokens of its path, itself included, that a token at each of these positions sees at most."""
        if self.chunk is not None:
            return positions % self.chunk + 1
        return positions + 1 if self.window is None else positions * 0 + self.window

    @property
    def size(self) -> int | None:
        """Tokens that one token sees at most; None: there is no bound."""
        return self.chunk if self.window is None else self.window

    def within(self, context: int) -> Span:
        """What is left of it in a context of so many tokens: a window or a chunk that is as long is none."""
        return ALL if min(self.window or context, self.chunk or context) >= context else self


ALL: Final = Span()
"""Every token of the path."""


def first_seen(spans: Sequence[Span], position: int) -> int:
    """Position of the first token that is seen, within any of these spans, by a token at this position of its text, or by one behind it."""
    return max(0, min(position + 1 - span.reach(position) for span in spans))


class Pattern(NamedTuple):
    """What a mask is made from: layers of one pattern share it."""

    span: Span
    group: int
    """Query heads that share one KV head."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    num_heads: int
    """Query heads H; a multiple of kv_heads. Head h uses KV head h // (H / kv_heads)."""
    kv_heads: int
    key_width: int
    """Of one head of keys, and of queries."""
    value_width: int
    """Of one head of values."""
    span: Span = ALL
    softcap: float | None = None
    """A score s becomes softcap * tanh(s / softcap), before the mask; None: it stays."""
    sinks: bool = False
    """Whether the softmax of each query head has one learnt score more, of which nothing is attended to."""
    values_in_keys: bool = False
    """Whether values are the first `value_width` numbers of the keys, and are not kept beside them."""

    @property
    def pattern(self) -> Pattern:
        """What its mask is made from."""
        return Pattern(self.span, self.num_heads // max(1, self.kv_heads))

    @property
    def kept(self) -> tuple[tuple[int, int], ...]:
        """What is kept of a token: (kv_heads, width) of its keys and of its values, or of keys alone that values lie in."""
        widths = (self.key_width,) if self.values_in_keys else (self.key_width, self.value_width)
        return tuple((self.kv_heads, width) for width in widths)

    @property
    def plain(self) -> bool:
        """Whether it attends by a softmax of its scores and nothing else."""
        return self.softcap is None and not self.sinks


NO_ATTENTION: Final = Layer(0, 0, 0, 0)
"""A layer without: it keeps states in the place of keys and values, or nothing."""


@dataclass(frozen=True)
class Geometry:
    """The attention of all layers of a model, in order."""

    layers: tuple[Layer, ...]

    @classmethod
    def uniform(cls, num_layers: int, num_heads: int, kv_heads: int, head_dim: int) -> Geometry:
        """Layers that are all alike, plain, and see all tokens."""
        return cls((Layer(num_heads, kv_heads, head_dim, head_dim),) * num_layers)

    @property
    def numbers(self) -> int:
        """Numbers that are kept of a token in all layers."""
        return sum(heads * width for layer in self.layers for heads, width in layer.kept)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every span that there is, once. A layer without attention counts as one that sees all tokens: its states are of all of them."""
        return tuple(dict.fromkeys(layer.span for layer in self.layers))

    @cached_property
    def bounded(self) -> tuple[Span, ...]:
        """Spans with a bound, where there are others too; else none."""
        bounded = tuple(span for span in self.spans if span.size is not None)
        return bounded if len(bounded) < len(self.spans) else ()

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every pattern that there is, once."""
        return tuple(dict.fromkeys(layer.pattern for layer in self.layers if layer != NO_ATTENTION))

    @cached_property
    def pattern_of(self) -> tuple[int, ...]:
        """By layer, the index of its pattern in `patterns`; -1 for one without attention."""
        return tuple(-1 if layer == NO_ATTENTION else self.patterns.index(layer.pattern) for layer in self.layers)

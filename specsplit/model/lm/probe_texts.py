"""The texts on which a model is tried at load: a prefix, and a small token tree behind it.

Short ones stand where a text begins, and where the context ends. A long one is longer than the numbers in the model's config, since
such a number may be a length from which on the model computes something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from transformers import PretrainedConfig
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
)

from specsplit.model.pages.batch import Row
from specsplit.model.pages.pool import PageTable

_SMALL: Final = 256
"""Numbers of a config up to this one are all taken for lengths."""

LONGEST: Final = 1024
"""The largest length that the long text is longer than: the scores of the model's own attention grow with its square."""

_NO_LENGTH: Final = re.compile(
    "base|dims?|embd|experts|ffn|heads|hidden|ids?|inner|intermediate|layers|model|rank|theta|vocab"
)
"""A word in names of larger numbers that are no lengths, but widths, counts, tokens, and bases of rotations."""

_DISTINCT: Final = 9
"""Tokens of a text that differ: what the embedding of some other token does is not what is looked for."""


@dataclass(frozen=True)
class Passage:
    """Made-up tokens: those of a prefix, and those of a tree whose node i is a child of `parents[i]`, or of the prefix at -1."""

    prefix: int
    parents: tuple[int, ...]
    vocab_size: int
    seed: int = 0
    start: int = 0
    """Position of its first token. Nothing is seen of what would stand before it."""
    adapter: int = 0
    """The `Row.adapter` of its rows."""

    @property
    def length(self) -> int:
        """Tokens of both."""
        return self.prefix + len(self.parents)

    def within(self, most: int) -> Passage:
        """With a shorter prefix, of one token at least, if it is longer than that."""
        return replace(self, prefix=max(1, min(self.prefix, most - len(self.parents))))

    @property
    def where(self) -> str:
        """How a message names it."""
        if self.start:
            return f"at positions {self.start} to {self.start + self.length - 1}"
        return f"in a text of {self.length} tokens"

    @cached_property
    def tokens(self) -> list[int]:
        """The prefix's, then the tree's."""
        return [(37 * (index % _DISTINCT) + 11 * self.seed + 5) % self.vocab_size for index in range(self.length)]

    def prefill(self, table: PageTable) -> Row:
        """The prefix, in the pages of a table."""
        return self._placed(Row.chunk(self.tokens[: self.prefix], table.upto(self.prefix)))

    def tree(self, table: PageTable) -> Row:
        """The tree behind it, with logits at every node."""
        return self._placed(Row.tree(self.tokens[self.prefix :], self.parents, table.upto(self.length)))

    def paths(self) -> Iterator[list[int]]:
        """To every leaf, the nodes on the path from the root."""
        for leaf in sorted(set(range(len(self.parents))) - set(self.parents)):
            yield _path(self.parents, leaf)

    def along(self, path: Sequence[int]) -> list[int]:
        """Tokens of the prefix and of the nodes on a path."""
        return [*self.tokens[: self.prefix], *(self.tokens[self.prefix + node] for node in path)]

    def _placed(self, row: Row) -> Row:
        return replace(row, positions=row.positions + self.start, adapter=self.adapter)


def short_texts(vocab_size: int, context: int) -> list[Passage]:
    """One where a text begins, and one that ends where the context does."""
    near, far = Passage(3, (-1, 0, 0, 1, 1, 3), vocab_size), Passage(5, (-1, 0, 1, 0, 2), vocab_size, seed=1)
    return [near, replace(far, start=max(0, context - far.length))]


def long_text(config: PretrainedConfig, vocab_size: int, context: int, most: int) -> Passage:
    """One of `most` tokens at most, and no more than the context takes. Its tree is a chain, which the model itself reads in one go."""
    tried = (length for _, length in _lengths(config, context) if length <= LONGEST)
    text = Passage(1 + max(tried, default=0), (-1, 0, 1, 2), vocab_size)
    return text.within(min(most, context))


def untried(config: PretrainedConfig, context: int) -> dict[str, int]:
    """By name, the numbers of a config that may be lengths within the context, and that no text here is longer than."""
    return {name: length for name, length in _lengths(config, context) if length > LONGEST}


def cache_behind(position: int, config: PretrainedConfig) -> Cache:
    """transformers' cache as it is behind so many tokens, all of which have slid out of what is still seen, with states of no text."""
    layers: Sequence[Any] = DynamicCache(config=config).layers
    if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers):
        return Cache(layers=[_SlidOut(position) for _ in range(config.num_hidden_layers)])
    return _CacheBehind(position, [_slid_out(layer, position) for layer in layers])


class _CacheBehind(Cache):
    """One that knows how long its text is although no layer may have counted."""

    def __init__(self, count: int, layers: list[Any]) -> None:
        super().__init__(layers=layers)
        self._count = count

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._count

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        layer: Any = self.layers[layer_idx]
        return layer.get_mask_sizes(query_length) if isinstance(layer, DynamicLayer) else (query_length, self._count)


def _slid_out(layer: Any, count: int) -> Any:
    """The layer of a cache, if it has keys and values, as one of full attention that has seen `count` tokens more than it keeps."""
    if not isinstance(layer, DynamicLayer):
        return layer
    states = getattr(layer, "number_of_states", 0)
    return _StatesAndSlidOut(count, states) if states else _SlidOut(count)


class _SlidOut(DynamicLayer):
    """A layer of a cache that has seen `count` tokens more than it keeps."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def get_seq_length(self) -> int:
        return self._count + super().get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        seen, _ = super().get_mask_sizes(query_length)
        return seen - self._count, self._count


class _StatesAndSlidOut(LinearAttentionAndFullAttentionLayer, _SlidOut):
    """One that keeps states too."""

    def __init__(self, count: int, number_of_states: int) -> None:
        LinearAttentionAndFullAttentionLayer.__init__(self, number_of_states)
        self._count = count


def _lengths(config: PretrainedConfig, context: int) -> Iterator[tuple[str, int]]:
    """Name and value of every number in a config that may be a length within the context."""
    for name, number in _numbers("", config.to_dict()):
        if 0 < number < context and (number <= _SMALL or _may_be_length(name)):
            yield name, int(number)


def _numbers(name: str, value: object) -> Iterator[tuple[str, int | float]]:
    """Every number in a value of a config with the name nearest to it, however deep."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(str(key), each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(name, each)
    elif isinstance(value, int | float):
        yield name, value


def _may_be_length(name: str) -> bool:
    return not any(_NO_LENGTH.fullmatch(word) for word in name.split("_"))


def _path(parents: Sequence[int], node: int) -> list[int]:
    """List the indices from the root to `node`."""
    return [*(_path(parents, parents[node]) if parents[node] >= 0 else ()), node]

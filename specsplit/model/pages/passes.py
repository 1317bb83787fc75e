"""How recurrent layers run one forward: a state follows a text token by token, so chunks go one by one, and trees level by level.

    T   tokens of the forward        n, q   rows of a pass, and tokens of each of them

The worked example of `specsplit.model.pages.batch` takes four passes of q = 1, with the states behind `the` before the first of them:

    cat     sat, is     on, the     and each goes on from the states that its parent made
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.pages.batch import Row

_STRIDE: Final = 16
"""Behind every so many pages states are wanted at least: each time costs a pass."""

Place = tuple[int, int]
"""Number of a pass, and of a row in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Rows of equally many tokens that go through a recurrent layer side by side: a chunk, or the nodes of one depth of all trees."""

    tokens: Tensor
    """[n * q] indices into T, row by row."""
    sources: Tensor
    """[n] which states the rows go on from: of the kept ones, or of those that the pass before made."""
    kept: bool
    """Whether these are kept ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """All passes of a forward, in order."""

    passes: Sequence[Pass]
    restore: Tensor
    """[T] indices into what the passes give, end to end."""
    places: dict[Place, Place]
    """Where the states behind a token are made, by number of its row and index in it: of every node, and where chunks are cut or end."""


def passes_of(
    rows: Sequence[Row],
    sources: Sequence[int],
    put: Callable[[NDArray[np.int64]], Tensor],
    page_size: int = 0,
    *,
    continues: bool = True,
) -> Passes:
    """Lay rows out; `sources`: by row, which of the kept states it goes on from. `put` takes indices to the device.

    `page_size`: chunks are cut where the states behind a page are wanted, which are those behind the last page that ends in the chunk, and
    behind some before it; 0 cuts none. `continues`: whether layers go on from states with more than one token; else a chunk that is not the
    beginning of a text is run token by token. Raises ValueError for a row that sees tokens of a tree that are not its own: those of a
    drafter, whose states nobody keeps.
    """
    starts = list(accumulate((row.num_tokens for row in rows), initial=0))
    chunks = {number for number, row in enumerate(rows) if is_chunk(row) and (continues or not begin(row))}
    planned: list[tuple[list[int], list[int], bool]] = []
    places: dict[Place, Place] = {}
    for number, row in enumerate(rows):
        if number in chunks:
            first = 0
            for stop in [*_cuts(row, page_size), row.num_tokens]:
                places[number, stop - 1] = len(planned), 0
                tokens = range(starts[number] + first, starts[number] + stop)
                planned.append((list(tokens), [0 if first else sources[number]], not first))
                first = stop
    parents = {number: _parents(row) for number, row in enumerate(rows) if number not in chunks}
    level = [(number, 0) for number in parents]
    kept = True
    while level:
        above = [sources[number] if kept else places[number, parents[number][node]][1] for number, node in level]
        places |= {place: (len(planned), index) for index, place in enumerate(level)}
        planned.append(([starts[number] + node for number, node in level], above, kept))
        level, kept = [(number, child) for number, node in level for child in _children(parents[number], node)], False
    order = np.concatenate([np.array(tokens) for tokens, _, _ in planned])
    passes = [Pass(put(np.array(tokens)), put(np.array(above)), kept) for tokens, above, kept in planned]
    return Passes(passes, put(np.argsort(order)), places)


def begin(row: Row) -> int:
    """Tokens of its text before a row."""
    return row.pages.length - row.num_tokens


def is_chunk(row: Row) -> bool:
    """Whether a row is a stretch of text of which nothing is wanted but its end: the states within it are not kept.

    A row of one token is none: it can be run beside others.
    """
    last = row.num_tokens - 1
    return (
        last > 0
        and all(index == last for index in row.logits_at)
        and bool(row.tail_mask[:, -1 - last :].sum() == (last + 1) * (last + 2) // 2)
    )


def _cuts(row: Row, page_size: int) -> list[int]:
    """After how many of its tokens a chunk is cut."""
    if not page_size:
        return []
    start, stop = begin(row), row.pages.length
    stride = _STRIDE * page_size
    ends = {*range(start // stride * stride + stride, stop, stride), stop // page_size * page_size}
    return sorted(end - start for end in ends if start < end < stop)


def _parents(row: Row) -> list[int]:
    """Of every new token of a tree the index of the one before it on its path; -1: that is none of them."""
    count, tail = row.tail_mask.shape
    if tail != count:
        raise ValueError(f"a row of {count} tokens sees {tail - count} others of a tree: no states of those are kept")
    before = row.tail_mask & ~np.eye(count, dtype=np.bool_)
    return [int(np.flatnonzero(seen)[-1]) if seen.any() else -1 for seen in before]


def _children(parents: Sequence[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]

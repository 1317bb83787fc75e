"""How recurrent layers run one forward: a state follows a text token by token, so chunks go one by one, and trees level by level.

    T   tokens of the forward        n, q   rows of a pass, and tokens of each of them

The worked example of `specsplit.model.pages.batch` takes four passes of q = 1, with the states behind `the` before the first of them:

    cat     sat, is     on, the     and each goes on from the states that its parent made
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Number of a pass, and of a row among those whose states it holds."""
Node = tuple[int, int]
"""Number of a row, and index of a token in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Rows of equally many tokens that go through a recurrent layer side by side: a chunk, or the nodes of one depth of all trees."""

    tokens: Tensor
    """[n * q] indices into T, row by row."""
    sources: Tensor
    """[n] which states the rows go on from: of the kept ones, or of those that the pass before made."""
    kept: bool
    """Whether these are kept ones."""
    held: Tensor | None = None
    """[k] rows whose states are held when the next pass has gone on from all of them; None: those of all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """All passes of a forward, in order."""

    passes: Sequence[Pass]
    restore: Tensor
    """[T] indices into what the passes give, end to end."""
    places: dict[Node, Place]
    """Where the states behind a token are held: behind every node of a tree, and where chunks are cut or end."""


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
    behind some before it; 0 cuts none. `continues`: whether layers go on from states with more than one token; else a chunk that is the
    beginning of a text is not cut, and any other is run token by token. Raises ValueError for a row that sees tokens of a tree that are
    not its own: those of a drafter, whose states nobody keeps.
    """
    ends = {number: [*_cuts(row, page_size), row.num_tokens] for number, row in enumerate(rows) if is_chunk(row)}
    at_once = {number for number in ends if continues or not begin(rows[number])}
    layout = _Layout(rows, sources, put)
    for number in sorted(at_once):
        layout.chunk(number, ends[number] if continues else ends[number][-1:])
    layout.levels({number: row for number, row in enumerate(rows) if number not in at_once}, ends)
    return layout.passes()


class _Layout:
    """Passes in the making."""

    def __init__(self, rows: Sequence[Row], sources: Sequence[int], put: Callable[[NDArray[np.int64]], Tensor]) -> None:
        self._starts: Final = list(accumulate((row.num_tokens for row in rows), initial=0))
        self._sources: Final = sources
        self._put: Final = put
        self._passes: Final[list[Pass]] = []
        self._order: Final[list[Sequence[int]]] = []
        self._places: Final[dict[Node, Place]] = {}

    def chunk(self, number: int, stops: Sequence[int]) -> None:
        """Add the passes of a chunk, each up to one of the stops."""
        start, first = self._starts[number], 0
        for stop in stops:
            behind = [0 if first else self._sources[number]]
            self._add(range(start + first, start + stop), behind, [(number, stop - 1)], kept=not first)
            first = stop

    def levels(self, rows: Mapping[int, Row], ends: Mapping[int, Sequence[int]]) -> None:
        """Add a pass for every depth of these rows. `ends`: of those that are chunks, behind how many tokens states are held."""
        parents = {number: _parents(row) for number, row in rows.items()}
        above: dict[Node, int] = {}
        for level in _levels(rows):
            tokens = [self._starts[number] + node for number, node in level]
            behind = [above.get((number, parents[number][node]), self._sources[number]) for number, node in level]
            held = [(number, node) if node + 1 in ends.get(number, (node + 1,)) else None for number, node in level]
            self._add(tokens, behind, held, kept=not above)
            above = {node: index for index, node in enumerate(level)}

    def _add(self, tokens: Sequence[int], behind: Sequence[int], held: Sequence[Node | None], *, kept: bool) -> None:
        """Add a pass. `held`: by row, of which token the states behind it are held; None: of none."""
        rows = [index for index, node in enumerate(held) if node is not None]
        nodes = (node for node in held if node is not None)
        self._places.update((node, (len(self._passes), place)) for place, node in enumerate(nodes))
        self._order.append(tokens)
        only = None if len(rows) == len(held) else self._put(np.array(rows, dtype=np.int64))
        self._passes.append(Pass(self._put(np.array(tokens)), self._put(np.array(behind)), kept, only))

    def passes(self) -> Passes:
        """Give all that were added."""
        order = np.concatenate([np.array(tokens) for tokens in self._order])
        return Passes(self._passes, self._put(np.argsort(order)), self._places)


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
        and (row.stretch or all(index == last for index in row.logits_at))
        and bool(row.tail_mask[:, -1 - last :].sum() == (last + 1) * (last + 2) // 2)
    )


def _cuts(row: Row, page_size: int) -> list[int]:
    """After how many of its tokens a chunk is cut; nowhere if its pages are its own: nobody goes on behind those."""
    if not page_size or row.pages.own is not None:
        return []
    start, stop = begin(row), row.pages.length
    stride = _STRIDE * page_size
    ends = {*range(start // stride * stride + stride, stop, stride), stop // page_size * page_size}
    return sorted(end - start for end in ends if start < end < stop)


def _levels(rows: Mapping[int, Row]) -> Iterator[list[Node]]:
    """Tokens of rows by how many of its row come before each on its path."""
    levels: defaultdict[int, list[Node]] = defaultdict(list)
    for number, row in rows.items():
        for node, depth in enumerate((row.positions - row.positions[0]).tolist()):
            levels[depth].append((number, node))
    return (levels[depth] for depth in sorted(levels))


def _parents(row: Row) -> list[int]:
    """Of every new token of a tree the index of the one before it on its path; -1: that is none of them."""
    count, tail = row.tail_mask.shape
    if tail != count:
        raise ValueError(f"a row of {count} tokens sees {tail - count} others of a tree: no states of those are kept")
    before = row.tail_mask & ~np.eye(count, dtype=np.bool_)
    last = count - 1 - before[:, ::-1].argmax(axis=1)
    return np.where(before.any(axis=1), last, -1).tolist()

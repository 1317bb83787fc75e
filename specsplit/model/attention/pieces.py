"""Attention of a long chunk on a CPU, piece by piece: a piece lists no token behind its last, so that nothing is computed to be hidden.

T, L   new tokens of the chunk, tokens that it sees      G   query heads that share a KV head
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specsplit.model.attention.softmax import attend
from specsplit.model.pages.batch import Row, causal_mask
from specsplit.model.pages.geometry import Layer

PIECE: Final = 128
"""New tokens of a piece; the first may have fewer."""


class Piece(NamedTuple):
    """Some new tokens of a chunk."""

    start: int
    stop: int
    bias: Tensor
    """[1, 1, G * (stop - start), tokens up to its last]"""


Bias: TypeAlias = Tensor | Sequence[Piece] | None
"""What is added to scores, or the pieces in which a chunk is attended to, each with its own; None: all see all."""


def is_cut(row: Row) -> bool:
    """Tell whether a row is a chunk that is long enough to be cut, and has no more tokens before it: of those nothing is hidden."""
    count = row.num_tokens
    if count <= PIECE or row.pages.length > 2 * count:
        return False
    return row.tail_mask.shape[1] == count and int(row.tail_mask.sum()) == count * (count + 1) // 2


def pieces_of(row: Row, bias_of: Callable[[NDArray[np.bool_]], Tensor]) -> list[Piece]:
    """Cut a chunk. `bias_of` makes a bias of what is hidden [1, queries, tokens]."""
    length, count = row.pages.length, row.num_tokens
    whole = bias_of(_hidden(PIECE, length))
    stops = range(count, PIECE - 1, -PIECE)
    pieces = [Piece(stop - PIECE, stop, whole[..., count - stop :]) for stop in reversed(stops)]
    first = pieces[0].start
    if first:
        pieces.insert(0, Piece(0, first, bias_of(_hidden(first, length - count + first))))
    return pieces


def attend_by(
    layer: Layer,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Bias,
    scaling: float | None,
    extras: dict[str, Any],
) -> Tensor:
    """Do what `attend` does, in pieces if there are some."""
    if bias is None or isinstance(bias, Tensor):
        return attend(layer, query, keys, values, bias, scaling, extras)
    by_head = query.unflatten(2, (-1, bias[-1].stop))
    outs: list[Tensor] = []
    for start, stop, hides in bias:
        own, seen = by_head[:, :, :, start:stop], hides.shape[3]
        out = attend(layer, own.flatten(2, 3), keys[:, :, :seen], values[:, :, :seen], hides, scaling, extras)
        outs.append(out.unflatten(2, (-1, stop - start)))
    return torch.cat(outs, dim=3).flatten(2, 3)


def _hidden(queries: int, length: int) -> NDArray[np.bool_]:
    """Compute what the last of so many tokens do not see of them, bool [1, queries, length]."""
    hidden = np.zeros((1, queries, length), dtype=np.bool_)
    hidden[0, :, length - queries :] = ~causal_mask(queries)
    return hidden

"""What attention over pages has to give, token by token and head by head, and the keys and values that it reads."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specsplit.model import KVCache, PagePool, Row
from specsplit.model.pages.geometry import ALL, Layer, Span
from tests.model.ragged import Ragged, slots_in

SPANS = st.one_of(st.just(ALL), st.builds(Span, window=st.integers(1, 40)), st.builds(Span, chunk=st.integers(1, 40)))


def path_of(row: Row, query: int) -> list[int]:
    """Local indices of what is on the path of a new token, as the mask of its tree says, itself last."""
    before = row.pages.length - row.tail_mask.shape[1]
    return [*range(before), *(before + np.flatnonzero(row.tail_mask[query])).tolist()]


def seen_of(row: Row, query: int, span: Span) -> list[int]:
    """Those that a token sees: the tokens of its path are at positions that count up to its own."""
    path = path_of(row, query)
    last = int(row.positions[query])
    positions = range(last - len(path) + 1, last + 1)

    def sees(position: int) -> bool:
        if span.chunk is not None:
            return position // span.chunk == last // span.chunk
        return span.window is None or last - position < span.window

    return [index for index, position in zip(path, positions, strict=True) if sees(position)]


def placed(batch: Ragged) -> list[Row]:
    """Its rows with positions that follow from their paths."""
    rows: list[Row] = []
    for row in batch.rows:
        positions = np.array([len(path_of(row, query)) - 1 for query in range(row.num_tokens)])
        rows.append(Row(row.tokens, positions, row.pages, row.tail_mask))
    return rows


def fill(kv: KVCache, number: int, rows: list[Row], pool: PagePool) -> None:
    """Store keys and values of what each row lists: from the first that some token of it sees."""
    layer = kv.geometry.layers[number]
    for row in rows:
        first = min(seen_of(row, query, layer.span)[0] for query in range(row.num_tokens))
        slots = slots_in(kv, number, pool, slots_of(row, pool)[first:])
        key, value = (torch.randn(len(slots), layer.kv_heads, width) for width in (layer.key_width, layer.value_width))
        kv.write(number, torch.from_numpy(slots), key, value)


def new_tokens(layer: Layer, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value as a model hands them on, and sinks."""
    shapes = (layer.num_heads, layer.key_width), (layer.kv_heads, layer.key_width), (layer.kv_heads, layer.value_width)
    query, key, value = (torch.randn(1, heads, count, width) for heads, width in shapes)
    return query, key, value, torch.randn(layer.num_heads)


def slots_of(row: Row, pool: PagePool) -> np.ndarray:
    return pool.tables.slots_of(pool.tables.listed(row.pages).astype(np.int64))[: row.pages.length]


def reference(kv: KVCache, number: int, rows: list[Row], pool: PagePool, query: Tensor, sinks: Tensor) -> Tensor:
    """[T, H, value width], in 64 bits, token by token and head by head."""
    layer, index, out = kv.geometry.layers[number], 0, []
    keys, values = (plane.double() for plane in kv.read(number, slice(None)))
    for row in rows:
        slots = slots_in(kv, number, pool, slots_of(row, pool))
        for token in range(row.num_tokens):
            at = torch.from_numpy(slots[seen_of(row, token, layer.span)])
            heads = []
            for head in range(layer.num_heads):
                of = head // (layer.num_heads // layer.kv_heads)
                scores = keys[at, of] @ query[0, head, index].double() * 0.4
                if layer.softcap is not None:
                    scores = layer.softcap * torch.tanh(scores / layer.softcap)
                if layer.sinks:
                    scores = torch.cat((scores, sinks[head].double()[None]))
                heads.append(scores.softmax(0)[: len(at)] @ values[at, of])
            out.append(torch.stack(heads))
            index += 1
    return torch.stack(out).float()

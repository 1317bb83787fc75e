"""What attention over pages has to give, token by token and head by head, and the keys and values that it reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row, ancestor_mask
from specsplit.model.attention.interface import DevicePlanner
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import ALL, Layer, Span
from tests.model.ragged import Ragged, slots_in
from tests.support.rounding import assert_same_sums

_CPU = torch.device("cpu")
SPANS = st.one_of(st.just(ALL), st.builds(Span, window=st.integers(1, 40)), st.builds(Span, chunk=st.integers(1, 40)))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    kv_heads, group = draw(st.sampled_from([(1, 3), (2, 1), (2, 2), (1, 20)]))
    widths = draw(st.sampled_from([(8, 8), (24, 8), (8, 16), (80, 64), (32, 32)]))
    softcap = draw(st.sampled_from([None, 0.7]))
    within = widths[0] >= widths[1] and draw(st.booleans())
    return Layer(kv_heads * group, kv_heads, *widths, draw(SPANS), softcap, draw(st.booleans()), within)


@st.composite
def levels(draw: st.DrawFn) -> tuple[list[Row], PagePool]:
    """Rows of as many new nodes each, as a descent has them: behind contexts, and earlier nodes of which each sees some."""
    new, pool, rows = draw(st.sampled_from([1, 2, 5, 19])), PagePool(400, 1), list[Row]()
    for _ in range(draw(st.integers(1, 3))):
        before, earlier = draw(st.integers(1, 30)), draw(st.integers(0, 40))
        parents = [draw(st.integers(-1, index - 1)) for index in range(earlier)]
        parents += [draw(st.integers(-1, earlier - 1)) for _ in range(new)]
        table = PageTable(pool)
        table.reserve(before + len(parents))
        mask = ancestor_mask(parents)[-new:]
        rows.append(Row([7] * new, before + mask.sum(axis=1) - 1, table.upto(before + len(parents)), mask))
    return rows, pool


def on_the_device(rows: list[Row], pool: PagePool, device: torch.device = _CPU) -> DeviceBatch:
    """Rows of `levels` as the device knows them: shorter contexts are padded with their first slot, and tails between old and new nodes."""
    new = rows[0].num_tokens
    before = [row.pages.length - row.tail_mask.shape[1] for row in rows]
    context = np.zeros((len(rows), max(before) + 3), dtype=np.int64)
    tail = np.zeros((len(rows), max(row.tail_mask.shape[1] for row in rows)), dtype=np.int64)
    sees = np.zeros((len(rows), new, tail.shape[1]), dtype=np.bool_)
    for index, (row, count) in enumerate(zip(rows, before, strict=True)):
        slots, earlier = slots_of(row, pool), row.tail_mask.shape[1] - new
        context[index] = tail[index] = slots[0]
        context[index, :count] = slots[:count]
        tail[index, :earlier], tail[index, -new:] = slots[count:-new], slots[-new:]
        sees[index, :, :earlier], sees[index, :, -new:] = row.tail_mask[:, :earlier], row.tail_mask[:, earlier:]
    written = np.concatenate([slots_of(row, pool)[-new:] for row in rows])
    positions = np.concatenate([row.positions for row in rows])
    arrays = np.full(len(written), 7), positions, written, context, np.array(before), tail, sees
    return DeviceBatch(*(torch.from_numpy(array).to(device) for array in arrays))


def attends_on_the_device(
    planner: Callable[[KVCache], DevicePlanner],
    described: list[Layer],
    rows: list[Row],
    pool: PagePool,
    unseen: float = 0.0,
) -> None:
    """Plan rows of `levels` on the device: every layer attends as is described. What no row sees of KV is `unseen`."""
    kv = KVCache(Geometry(tuple(described)), pool.num_slots, torch.float32, _CPU)
    for tensor in kv.tensors:
        tensor.fill_(unseen)
    forward = planner(kv).plan_on_device(on_the_device(rows, pool))
    for number, layer in enumerate(described):
        fill(kv, number, rows, pool)
        query, key, value, sinks = new_tokens(layer, sum(row.num_tokens for row in rows))
        found = forward.attend(number, query, key, value, 0.4, {"s_aux": sinks})
        assert_same_sums(found[0], reference(kv, number, rows, pool, query, sinks))


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

"""Layers that see a window or a chunk of their path, cap their scores, have sinks, or keep values of another width than keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import Geometry, PagePool, PageTable, Row
from specsplit.model.attention.interface import ForwardBatch, ToldMask
from specsplit.model.attention.pieces import PIECE, is_cut, pieces_of
from specsplit.model.attention.support import observe
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.pages.batch import visible
from specsplit.model.pages.geometry import ALL, Layer, Span
from specsplit.model.pages.input_batch import InputBatch
from tests.model.attended import SPANS, attends_on_the_device, fill, levels, new_tokens, placed, reference, seen_of
from tests.model.ragged import Ragged, cache_of, pools, ragged
from tests.support.rounding import assert_same_sums

CPU = torch.device("cpu")


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    kv_heads, group = draw(st.sampled_from([(1, 3), (2, 1), (2, 2)]))
    widths = draw(st.sampled_from([(8, 8), (8, 4), (4, 8)]))
    softcap = draw(st.sampled_from([None, 0.7]))
    within = widths[0] >= widths[1] and draw(st.booleans())
    return Layer(kv_heads * group, kv_heads, *widths, draw(SPANS), softcap, draw(st.booleans()), within)


@given(ragged(4, most_rows=1, most_tokens=60), SPANS, st.integers(0, 50))
def test_a_token_sees_what_its_span_holds_of_its_own_path_and_nothing_before_that_is_listed(
    batch: Ragged, span: Span, start: int
) -> None:
    (row,) = placed(batch)
    row = Row(row.tokens, row.positions + start, row.pages, row.tail_mask)
    first, mask = visible(row, span)
    found = [(first + np.flatnonzero(seen)).tolist() for seen in mask]
    assert found == [seen_of(row, query, span) for query in range(row.num_tokens)]
    assert first == min(map(min, found))


@settings(max_examples=60)
@given(st.data())
def test_attention_is_that_of_the_description_over_what_is_seen_alone(data: st.DataObject) -> None:
    """What lies before all that the tokens of a row see is NaN: it must not even be read."""
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    described = data.draw(st.lists(layers(), min_size=1, max_size=4))
    geometry, most_rows = Geometry(tuple(described)), data.draw(st.sampled_from([1, 4]))
    pool = data.draw(pools(geometry, page_size, most_rows, 70))
    batch = data.draw(ragged(page_size, most_rows, 70, pool))
    rows = placed(batch)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    kv = cache_of(geometry, batch.pool, torch.float32)
    forward = TorchAttention(kv, page_size).plan(InputBatch(rows, batch.pool.tables, CPU))
    for number, layer in enumerate(described):
        fill(kv, number, rows, batch.pool)
        query, key, value, sinks = new_tokens(layer, sum(row.num_tokens for row in rows))
        found = forward.attend(number, query, key, value, 0.4, {"s_aux": sinks})
        assert_same_sums(found[0], reference(kv, number, rows, batch.pool, query, sinks))


@pytest.mark.parametrize(
    ("lengths", "before"),
    [([PIECE + 1], 0), ([2 * PIECE], 0), ([150], 150), ([150], 151), ([150, 140], 9), ([3, 150, 2], 20)],
    ids=[
        "a first piece of one token",
        "two equal pieces",
        "as much before",
        "more before",
        "two chunks",
        "among short ones",
    ],
)
def test_a_long_chunk_is_attended_to_in_pieces_as_the_description_has_it(lengths: list[int], before: int) -> None:
    described = (
        Layer(3, 1, 8, 8),
        Layer(4, 2, 8, 4, Span(window=100), None, False, False),
        Layer(4, 2, 8, 4, ALL, 0.7, True, True),
    )
    pool = PagePool(200, 4)
    tables = [PageTable(pool) for _ in lengths]
    for share in (2, 1):  # pages of the tables take turns
        for table, length in zip(tables, lengths, strict=True):
            table.reserve((before + length) // share)
    rows = [Row.chunk([7] * length, table.upto(before + length)) for table, length in zip(tables, lengths, strict=True)]
    torch.manual_seed(0)
    kv = cache_of(Geometry(described), pool, torch.float32)
    forward = TorchAttention(kv, 4).plan(InputBatch(rows, pool.tables, CPU))
    assert [is_cut(row) for row in rows] == [length > PIECE and before <= length for length in lengths]
    for number, layer in enumerate(described):
        fill(kv, number, rows, pool)
        query, key, value, sinks = new_tokens(layer, sum(lengths))
        found = forward.attend(number, query, key, value, 0.4, {"s_aux": sinks})
        assert_same_sums(found[0], reference(kv, number, rows, pool, query, sinks))


@given(st.integers(PIECE + 1, 4 * PIECE), st.integers(0, 2 * PIECE))
def test_pieces_cover_a_chunk_in_order_and_hide_of_what_they_list_what_comes_later(count: int, before: int) -> None:
    pool = PagePool(1000, 1)
    table = PageTable(pool)
    table.reserve(before + count)
    stop = 0
    for piece in pieces_of(Row.chunk([7] * count, table.upto(before + count)), torch.from_numpy):
        assert piece.start == stop
        assert piece.stop - piece.start <= PIECE
        stop = piece.stop
        assert (~piece.bias[0]).sum(dim=1).tolist() == [before + token + 1 for token in range(piece.start, stop)]
        assert piece.bias.shape[2] == before + stop
    assert stop == count


def test_a_tree_and_a_chunk_with_much_before_it_are_not_cut() -> None:
    pool = PagePool(1000, 1)
    table = PageTable(pool)
    table.reserve(600)
    assert is_cut(Row.chunk([7] * 300, table.upto(600)))
    assert not is_cut(Row.chunk([7] * 299, table.upto(600)))
    assert not is_cut(Row.chunk([7] * PIECE, table.upto(PIECE)))
    assert not is_cut(Row.tree([7] * 300, [-1, 0, 0, *range(2, 299)], table.upto(600)))


@given(st.lists(layers(), min_size=1, max_size=3), levels())
def test_a_batch_that_only_the_device_knows_is_attended_to_in_the_same_way(
    described: list[Layer], nodes: tuple[list[Row], PagePool]
) -> None:
    attends_on_the_device(lambda kv: TorchAttention(kv, 1), described, *nodes)


def observed(mask: ToldMask | None, window: int | None = None, context: int = 100) -> Span:
    """The span of a layer whose model has made this mask for it, and tells its attention of a window."""

    def forward(recorder: ForwardBatch) -> None:
        query, key, value = torch.ones(1, 4, 1, 8), torch.ones(1, 2, 1, 8), torch.ones(1, 2, 1, 6)
        recorder.attend(0, query, key, value, None, {"mask": mask, "sliding_window": window, "softcap": None})

    (layer,) = observe(forward, 1, context).layers
    assert (layer.num_heads, layer.kv_heads, layer.key_width, layer.value_width) == (4, 2, 8, 6)
    return layer.span


def mask_of(span: Span) -> ToldMask:
    """As transformers makes it."""
    from transformers.masking_utils import (
        causal_mask_function,
        chunked_causal_mask_function,
        sliding_window_causal_mask_function,
    )

    if span.chunk is not None:
        return ToldMask(chunked_causal_mask_function(span.chunk, torch.zeros(1, dtype=torch.long)), span.chunk)
    if span.window is not None:
        return ToldMask(sliding_window_causal_mask_function(span.window), span.window)
    return ToldMask(causal_mask_function, None)


@given(SPANS, st.integers(1, 60))
def test_a_layers_span_is_that_of_the_mask_that_its_model_makes(span: Span, context: int) -> None:
    positions = np.arange(context)
    found, expected = (
        np.minimum(each.reach(positions), positions + 1) for each in (observed(mask_of(span), context=context), span)
    )
    assert found.tolist() == expected.tolist()


def test_what_a_mask_says_counts_for_more_than_what_attention_is_told() -> None:
    assert observed(mask_of(ALL), window=5) == ALL
    assert observed(None, window=5) == Span(window=5)
    assert observed(None) == observed(None, window=100) == ALL


@pytest.mark.parametrize("size", [None, 10])
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_that_is_none_of_these_is_refused(size: int | None, shift: int) -> None:
    true = mask_of(Span(window=size))
    with pytest.raises(LoadError, match="layer 0 sees other tokens than those before its own"):
        observed(ToldMask(lambda batch, head, query, key: true.sees(batch, head, query + shift, key), size))


def test_a_model_that_takes_its_mask_for_a_tensor_is_refused() -> None:
    with pytest.raises(LoadError, match="it changes its attention mask in its layers"):
        mask_of(ALL).dtype  # noqa: B018

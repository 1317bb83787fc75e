"""A row that is alone is attended to by a way of its own: what comes out, and what is stored, is as of any rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row, ancestor_mask
from specsplit.model.attention.row_attention import RowForward
from specsplit.model.attention.torch_attention import TorchAttention, TorchForward
from specsplit.model.pages.input_batch import InputBatch
from tests.support.rounding import APART_ONCE, assert_same_sums

CPU = torch.device("cpu")
LAYERS = 3


@given(st.data())
def test_it_is_what_any_rows_are_given(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    group, dim = data.draw(st.sampled_from([1, 2, 4])), 8
    length = data.draw(st.integers(1, 70))
    new = data.draw(st.integers(1, min(length, 12)))
    pool = PagePool(400 // page_size, page_size)
    before, table, between = (PageTable(pool) for _ in range(3))
    before.reserve(data.draw(st.integers(1, 20)))
    for behind in sorted(data.draw(st.lists(st.integers(1, length), max_size=3))):  # its pages are in so many places
        table.reserve(behind)
        between.reserve(len(between) + 1)
    table.reserve(length)
    parents = [-1, *(data.draw(st.integers(0, index - 1)) for index in range(1, new))]
    row = Row([7] * new, np.arange(new), table.upto(length), ancestor_mask(parents))

    torch.manual_seed(data.draw(st.integers(0, 99)))
    kv = KVCache(Geometry.uniform(LAYERS, 2 * group, 2, dim), pool.num_slots, torch.float32, CPU)
    kv.data.fill_(torch.nan)  # what the row does not see must not be read
    slots = table.slots(0, length)
    for layer in range(LAYERS):
        kv.write(layer, torch.from_numpy(slots), *torch.randn(2, length, 2, dim))
    other = KVCache(Geometry.uniform(LAYERS, 2 * group, 2, dim), pool.num_slots, torch.float32, CPU)
    other.data.copy_(kv.data)

    scaling = data.draw(st.sampled_from([None, 0.3]))
    alone = TorchAttention(kv, page_size).plan(InputBatch([row], pool.tables, CPU))
    as_any = TorchAttention(other, page_size).gathered(InputBatch([row], pool.tables, CPU))
    side_by_side = bool((np.diff(slots[-new:]) == 1).all())
    assert isinstance(alone, RowForward if side_by_side else TorchForward)
    for layer in range(LAYERS):
        query, key, value = (torch.randn(1, heads, new, dim) for heads in (2 * group, 2, 2))
        found, expected = (forward.attend(layer, query, key, value, scaling, {}) for forward in (alone, as_any))
        assert found.isfinite().all()
        assert_same_sums(found, expected, APART_ONCE)
    torch.testing.assert_close(kv.data, other.data, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(("apart", "reads"), [(False, slice(8, 13)), (True, [8, 9, 10, 11, 16])])
def test_kv_in_one_place_is_read_where_it_is(apart: bool, reads: slice | list[int]) -> None:
    pool = PagePool(8, 4)
    before, table, between = (PageTable(pool) for _ in range(3))
    before.reserve(8)
    table.reserve(4)
    between.reserve(4 * apart)
    table.reserve(5)
    batch = InputBatch([Row.tree([1], [-1], table.upto(5))], pool.tables, CPU)
    assert batch.new_run == (slice(16, 17) if apart else slice(12, 13))
    assert (batch.run or batch.slots([0])[0].tolist()) == reads


def test_kv_of_8_bits_is_read_as_of_any_rows() -> None:
    pool = PagePool(4, 4)
    table = PageTable(pool)
    table.reserve(5)
    kv = KVCache(Geometry.uniform(1, 2, 2, 8), pool.num_slots, torch.float32, CPU, torch.float8_e4m3fn)
    batch = InputBatch([Row.chunk([1] * 5, table.upto(5))], pool.tables, CPU)
    assert batch.new_run is not None
    assert isinstance(TorchAttention(kv, 4).plan(batch), TorchForward)

"""A row whose KV lies side by side is attended to in place: what comes out, and what is stored, is as if it lay anywhere."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row, ancestor_mask
from specsplit.model.input_batch import InputBatch
from specsplit.model.run_attention import RunForward
from specsplit.model.torch_attention import TorchAttention

CPU = torch.device("cpu")
LAYERS = 3


@given(st.data())
def test_it_is_what_gathered_kv_gives(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    group, dim = data.draw(st.sampled_from([1, 2, 4])), 8
    length = data.draw(st.integers(1, 70))
    new = data.draw(st.integers(1, min(length, 12)))
    pool = PagePool(40 // page_size + 80, page_size)
    before, table = PageTable(pool), PageTable(pool)
    before.reserve(data.draw(st.integers(1, 20)))  # the run begins anywhere
    table.reserve(length)
    parents = [-1, *(data.draw(st.integers(0, index - 1)) for index in range(1, new))]
    row = Row([7] * new, np.arange(new), table.upto(length), ancestor_mask(parents))

    torch.manual_seed(data.draw(st.integers(0, 99)))
    kv = KVCache(Geometry(LAYERS, 2 * group, 2, dim), pool.num_slots, torch.float32, CPU)
    kv.data.fill_(torch.nan)  # what the row does not see must not be read
    slots = torch.from_numpy(table.slots(0, length))
    for layer in range(LAYERS):
        kv.write(layer, slots, *torch.randn(2, length, 2, dim))
    other = KVCache(Geometry(LAYERS, 2 * group, 2, dim), pool.num_slots, torch.float32, CPU)
    other.data.copy_(kv.data)

    scaling = data.draw(st.sampled_from([None, 0.3]))
    in_place = TorchAttention(kv, group, page_size).plan(InputBatch([row], pool.tables, CPU))
    gathered = TorchAttention(other, group, page_size).gathered(InputBatch([row], pool.tables, CPU))
    assert isinstance(in_place, RunForward)
    for layer in range(LAYERS):
        query, key, value = (torch.randn(1, heads, new, dim) for heads in (2 * group, 2, 2))
        found, expected = (forward.attend(layer, query, key, value, scaling, {}) for forward in (in_place, gathered))
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(kv.data, other.data, atol=0, rtol=0, equal_nan=True)


def test_kv_of_8_bits_is_not_read_in_place() -> None:
    pool = PagePool(4, 4)
    table = PageTable(pool)
    table.reserve(5)
    kv = KVCache(Geometry(1, 2, 2, 8), pool.num_slots, torch.float32, CPU, torch.float8_e4m3fn)
    batch = InputBatch([Row.chunk([1] * 5, table.upto(5))], pool.tables, CPU)
    assert batch.run is not None
    assert not isinstance(TorchAttention(kv, 1, 4).plan(batch), RunForward)

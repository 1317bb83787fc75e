"""The Triton kernels, by the interpreter: they compute what the description of a layer says, for any rows, and in any number of parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import Geometry, KVCache, PagePool, PageTable, Row
from specsplit.model.attention.backends import require_backend
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.attention.triton.attention import TritonAttention, unserved
from specsplit.model.attention.triton.layout import FIELDS, Field, Shape, lay_out
from specsplit.model.attention.triton.tiles import Tile, parts_of, pieces
from specsplit.model.graphs import Bucket, Buckets, StaticInputs
from specsplit.model.pages.device_batch import DeviceBatch
from specsplit.model.pages.geometry import ALL, NO_ATTENTION, Layer, Span
from specsplit.model.pages.input_batch import InputBatch
from specsplit.model.pages.windows import WindowPages
from tests.model.attended import attends_on_the_device, fill, layers, levels, new_tokens, placed, reference
from tests.model.ragged import cache_of, pools, ragged
from tests.support.kernels import interpreted
from tests.support.launches import recorded_kernels
from tests.support.rounding import assert_same_sums

CPU = torch.device("cpu")


class TestInterpreted:
    pytestmark = interpreted

    @settings(max_examples=12)
    @given(st.data())
    def test_it_computes_what_the_description_says_over_what_is_seen_alone(self, data: st.DataObject) -> None:
        """Where nothing of a text lies, and before all that a row sees, is NaN: it must not be read."""
        page_size = data.draw(st.sampled_from([1, 4, 16]))
        described = [NO_ATTENTION, data.draw(layers()), Layer(2, 2, 8, 8)]
        geometry = Geometry(tuple(described))
        pool = data.draw(pools(geometry, page_size, 3, 40))
        batch = data.draw(ragged(page_size, 3, 40, pool))
        rows = placed(batch)
        torch.manual_seed(data.draw(st.integers(0, 99)))
        kv = cache_of(geometry, batch.pool, torch.float32)
        backend = TritonAttention(kv, page_size, processors_of_device=data.draw(st.sampled_from([1, 64])), share=16)
        forward = backend.plan(InputBatch(rows, batch.pool.tables, CPU))
        fill(kv, 1, rows, batch.pool)
        query, key, value, sinks = new_tokens(described[1], sum(row.num_tokens for row in rows))
        found = forward.attend(1, query, key, value, 0.4, {"s_aux": sinks})
        assert_same_sums(found[0], reference(kv, 1, rows, batch.pool, query, sinks))

    @settings(max_examples=12)
    @given(st.lists(layers(), min_size=1, max_size=3), levels(), st.sampled_from([1, 64]))
    def test_a_batch_that_only_the_device_knows_is_attended_to_in_the_same_way(
        self, described: list[Layer], nodes: tuple[list[Row], PagePool], processors: int
    ) -> None:
        """Nor is anything read that no token sees."""
        attends_on_the_device(
            lambda kv: TritonAttention(kv, 1, processors_of_device=processors, share=16), described, *nodes, torch.nan
        )

    @pytest.mark.parametrize(
        "described",
        [
            [Layer(32, 8, 128, 128)],
            [Layer(8, 8, 192, 128, Span(window=7))],
            [
                Layer(8, 4, 16, 16),
                Layer(8, 2, 16, 16),
            ],  # with 5 to 8 new tokens tiles of the one are small, and of the other not
        ],
    )
    def test_what_a_level_takes_was_compiled_at_load(self, described: list[Layer]) -> None:
        kv = KVCache(Geometry(tuple(described)), 400, torch.float16, CPU)
        backend = TritonAttention(kv, 1, processors_of_device=132)
        with recorded_kernels() as compiled:
            backend._compile()  # pyright: ignore[reportPrivateUsage]
        for rows, new, tail, context in ((1, 1, 16, 64), (1, 8, 32, 256), (1, 16, 32, 256), (2, 5, 40, 300)):
            written = torch.arange(rows * new)
            listed = [torch.zeros(rows, count, dtype=torch.int64) for count in (context, tail)]
            sees = torch.ones(rows, new, tail, dtype=torch.bool)
            lengths = torch.full((rows,), context)
            batch = DeviceBatch(written, written, written, listed[0], lengths, listed[1], sees)
            with recorded_kernels() as launched:
                forward = backend.plan_on_device(batch)
                for number, layer in enumerate(described):
                    query, key, value, _ = (each.to(kv.dtype) for each in new_tokens(layer, len(written)))
                    forward.attend(number, query, key, value, None, {})
            assert {kernel[0] for kernel in launched} >= {"lay_out", "attend"} and launched <= compiled

    @pytest.mark.parametrize("length", [2, 40])
    def test_what_a_window_hides_of_a_tail_is_not_read(self, length: int) -> None:
        """A drafter's node whose tail begins before its window, where pages have been given back: what lies there is NaN."""
        pool = PagePool(100, 1)
        table = PageTable(pool)
        table.reserve(length)
        tail = np.array([[True] * (length // 2) + [False] * (length // 2 - 1) + [True]])
        row = Row(tokens=[7], positions=np.array([length - 1]), pages=table.upto(length), tail_mask=tail)
        described = Layer(3, 1, 8, 8, Span(window=1))
        torch.manual_seed(0)
        kv = cache_of(Geometry((described,)), pool, torch.float32)
        forward = TritonAttention(kv, 1, processors_of_device=1, share=16).plan(InputBatch([row], pool.tables, CPU))
        fill(kv, 0, [row], pool)
        query, key, value, sinks = new_tokens(described, 1)
        found = forward.attend(0, query, key, value, 0.4, {})
        assert_same_sums(found[0], reference(kv, 0, [row], pool, query, sinks))

    @pytest.mark.parametrize(
        "described",
        [
            Layer(4, 2, 8, 8),
            Layer(6, 2, 24, 8, Span(window=7), 0.7, sinks=True),
            Layer(4, 1, 80, 64, Span(chunk=9), values_in_keys=True),
            Layer(20, 1, 40, 32, sinks=True, values_in_keys=True),
        ],
        ids=["plain", "a window, soft caps and sinks", "chunks of latents", "more heads than lines"],
    )
    @pytest.mark.parametrize("processors", [1, 64], ids=["whole", "in parts"])
    def test_trees_chunks_and_pages_of_a_row_alone_are_attended_to_at_once(
        self, described: Layer, processors: int
    ) -> None:
        pool, lengths = PagePool(200, 4), (50, 30, 41)
        tables = [PageTable(pool) for _ in lengths]
        for share in (2, 1):  # pages of the tables take turns
            for table, length in zip(tables, lengths, strict=True):
                table.reserve(length // share)
        rows = [
            Row.tree([7] * 6, [-1, 0, 0, 1, 1, 3], tables[0].upto(50)),
            Row.chunk([7] * 9, tables[1].upto(30)),
            Row.tree([7] * 3, [-1, 0, 0], tables[2].upto(41, pool.allocate(3))),
        ]
        torch.manual_seed(0)
        kv = cache_of(Geometry((described, Layer(2, 2, 8, 8))), pool, torch.float32)
        backend = TritonAttention(kv, 4, processors_of_device=processors, share=16)
        forward = backend.plan(InputBatch(rows, pool.tables, CPU))
        fill(kv, 0, rows, pool)
        query, key, value, sinks = new_tokens(described, 18)
        found = forward.attend(0, query, key, value, 0.4, {"s_aux": sinks})
        assert_same_sums(found[0], reference(kv, 0, rows, pool, query, sinks))

    @pytest.mark.parametrize("windowed", [False, True])
    def test_what_was_captured_attends_to_whatever_is_planned_later(self, windowed: bool) -> None:
        """Layout, tables and window pages are read where they lie, though tables have grown and window pages have moved since."""
        described = Layer(4, 2, 16, 16, Span(window=6)), Layer(4, 2, 16, 16)
        geometry, count = Geometry(described), 300
        windows = WindowPages(count, count, 4, geometry.bounded) if windowed else None
        pool = PagePool(count, 4, geometry.spans, windows)
        kv = KVCache(geometry, (count + 1) * 4, torch.float32, CPU, window_slots=(count + 1) * 4 * windowed)
        for tensor in kv.tensors:
            tensor.normal_(generator=torch.Generator().manual_seed(0))
        buckets = Buckets(16, 4)
        static = TritonAttention(kv, 4, processors_of_device=16, share=32).static(pool.tables, buckets)
        inputs, bucket = StaticInputs(pool.tables, pool.spare_page, 16, CPU), Bucket(16, 4)
        held = inputs.of(bucket)
        forward = static.forward(bucket, "any", (held.write_slots, held.window_write_slots))
        tables = [PageTable(pool) for _ in range(3)]
        for step, lengths in enumerate([(9, 3, 5), (20, 7, 30), (90, 40, 31)]):
            for table, length in zip(tables, lengths, strict=True):
                table.reserve(length)
            if windows is not None:
                windows.hold(np.random.default_rng(step).permutation(count).tolist())
            rows = [
                Row.tree([7] * 3, [-1, 0, 0], tables[0].upto(lengths[0])),
                Row.chunk([7] * 3, tables[1].upto(lengths[1])),
                Row.tree([7] * 4, [-1, 0, 1, 0], tables[2].upto(lengths[2], pool.allocate(1))),
            ][: step + 1]
            padded = inputs.padded(rows, bucket)
            assert static.fitting(rows) == static.forms
            inputs.load(padded, bucket, step % 2)
            static.plan(padded, bucket, "any", step % 2)
            eager = TorchAttention(kv, 4).plan(InputBatch(padded, pool.tables, CPU))
            for number, layer in enumerate(described):
                query, key, value, _ = new_tokens(layer, 16)
                found, expected = (each.attend(number, query, key, value, None, {}) for each in (forward, eager))
                assert_same_sums(found, expected)

    @pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
    def test_over_kv_of_few_bits_it_computes_what_torch_computes(self, stored: torch.dtype | None) -> None:
        """In float16: the interpreter multiplies matrices of bfloat16 as if their bits were integers; tests/gpu has both."""
        dtype = torch.float16
        pool = PagePool(20, 4)
        table = PageTable(pool)
        table.reserve(40)
        kv = KVCache(Geometry.uniform(1, 4, 2, 16), pool.num_slots, dtype, CPU, stored)
        torch.manual_seed(0)
        slots = torch.from_numpy(table.slots(0, 40))
        kv.write(0, slots, *torch.randn(2, 40, 2, 16).to(dtype))
        batch = InputBatch([Row.tree([7] * 6, [-1, 0, 0, 1, 1, 3], table.upto(40))], pool.tables, CPU)
        query, key, value = (torch.randn(1, heads, 6, 16).to(dtype) for heads in (4, 2, 2))
        found, expected = (
            backend.plan(batch).attend(0, query, key, value, None, {})
            for backend in (TritonAttention(kv, 4), TorchAttention(kv, 4))
        )
        torch.testing.assert_close(found, expected, atol=4e-3, rtol=4e-3)

    @pytest.mark.parametrize("processors", [1, 64], ids=["whole", "in parts"])
    def test_a_number_that_is_none_is_not_passed_over(self, processors: int) -> None:
        pool = PagePool(20, 4)
        table = PageTable(pool)
        table.reserve(40)
        kv = KVCache(Geometry.uniform(1, 2, 2, 16), pool.num_slots, torch.float32, CPU)
        kv.write(0, torch.from_numpy(table.slots(17, 18)), *torch.full((2, 1, 2, 16), torch.nan))
        rows = [Row.chunk([7], table.upto(40)), Row.chunk([7], table.upto(17))]
        backend = TritonAttention(kv, 4, processors_of_device=processors, share=16)
        new = torch.ones(1, 2, 2, 16)
        found = backend.plan(InputBatch(rows, pool.tables, CPU)).attend(0, new, new, new, None, {})
        assert found[0, 0].isnan().all() and found[0, 1].isfinite().all()


def test_a_plan_is_words_as_they_are_documented() -> None:
    pool = PagePool(20, 4)
    tables = [PageTable(pool) for _ in range(2)]
    for table in tables:
        table.reserve(12)
    tree = Row.tree([7] * 3, [-1, 0, 0], tables[0].upto(10, np.array([15])))
    chunk = Row.chunk([7] * 5, tables[1].upto(9))
    shape = Shape.of([2, 16], 3, 8, (ALL, Span(window=2)))
    words, more = lay_out([tree, chunk], shape, 4)
    assert shape.tiles == {2: 7, 16: 3}
    assert words[:14].reshape(-1, 2).tolist() == [[0, 0], [0, 2], [1, 3], [1, 5], [1, 7], [-1, -1], [-1, -1]]
    assert words[14:20].reshape(-1, 2).tolist() == [[0, 0], [1, 3], [-1, -1]]
    fields = words[shape.rows_at : shape.low_at].reshape(3, FIELDS)
    place = shape.more_at
    assert fields[0].tolist() == [0, 3, 10, 7, tables[0].number, 2, place, place + 1, 1]
    assert fields[1].tolist() == [3, 8, 9, 4, tables[1].number, 3, place + 7, place + 7, 0]
    assert words[shape.low_at :].reshape(2, 8).tolist() == [[0] * 8, [6, 7, 7, 3, 4, 5, 6, 7]]
    assert [part.tolist() for part in more] == [[15], [0b1, 0b11, 0b101], [0b1, 0b11, 0b101]]
    assert Field.WORDS == FIELDS - 1


def test_a_mask_of_more_than_32_tokens_takes_further_words() -> None:
    pool = PagePool(50, 1)
    table = PageTable(pool)
    table.reserve(40)
    row = Row.tree([7] * 34, [-1, *([0] * 33)], table.upto(40))
    _, (bits,) = lay_out([row], Shape.of([16], 1, 34, (ALL,)), 1)
    assert bits.reshape(34, 2)[:2].tolist() == [[1, 0], [3, 0]]
    assert bits.reshape(34, 2)[31:].tolist() == [[1 - 2**31, 0], [1, 1], [1, 2]]


@given(st.integers(1, 600), st.integers(1, 300), st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_key_is_read_in_two_pieces_and_parts_are_a_power_of_2(
    width: int, processors: int, programs: int, keys: int
) -> None:
    front, rest = pieces(Layer(1, 1, width, width))
    assert front.bit_count() == 1 and rest.bit_count() <= 1 and front + rest >= width
    count = parts_of(programs, processors, keys)
    assert count.bit_count() == 1 and 1 <= count <= 32
    assert count == 1 or (count * programs <= 2 * processors and count * 256 < 256 + keys)


def test_a_tile_holds_all_heads_of_some_tokens_or_some_of_one() -> None:
    grouped, latent = Layer(32, 8, 128, 128), Layer(128, 1, 576, 512, values_in_keys=True)
    assert [Tile.of(grouped, *size, torch.bfloat16).tokens for size in ((4, 1), (64, 64), (5, 1))] == [4, 4, 16]
    assert (Tile.of(latent, 1, 1, torch.bfloat16).group, Tile.of(latent, 1, 1, torch.bfloat16).tokens) == (32, 1)
    assert pieces(latent) == (512, 64) and pieces(Layer(1, 1, 80, 80)) == (64, 16)


def test_what_it_does_not_serve_it_says() -> None:
    assert unserved(Geometry((NO_ATTENTION,)), torch.float16) == "no layer has attention that it could compute"
    latents = Geometry((Layer(8, 2, 128, 128), Layer(128, 1, 576, 512, values_in_keys=True)))
    assert unserved(latents, torch.bfloat16) is None
    found = unserved(latents, torch.float32)
    assert found == "heads of layer 1 are 576 and 512 wide, and it takes keys of 256 and values of 256 at most"


def test_without_a_gpu_it_is_refused_where_it_is_asked_for() -> None:
    kv = KVCache(Geometry.uniform(1, 2, 2, 64), 4, torch.float32, CPU)
    with pytest.raises(LoadError, match=r"attention = triton cannot be had: .*they need a GPU, and the device is cpu"):
        require_backend("triton", kv)

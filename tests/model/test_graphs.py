"""Captured forwards: whatever is run through padding and static memory is what an eager forward gives, and harms nobody's KV."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import Incompatible
from specsplit.features import LAST
from specsplit.model import CausalLM, PagePool, PageTable, Row, RowPages
from specsplit.model.attention.flashinfer.attention import FlashInferAttention
from specsplit.model.graphs import Bucket, Buckets, Halves, StaticAttention, StaticInputs, Upload, capturer
from specsplit.model.graphs.graphs import MOST_MISSED
from specsplit.model.pages.geometry import ALL, Span
from specsplit.model.pages.windows import WindowPages
from specsplit.records import Eager, GraphStatistics
from tests.model import documented
from tests.model.ragged import ragged
from tests.support.copies import counted_copies
from tests.support.graphs import (
    ALL_LAYERS,
    LAYERS,
    FailingCapturer,
    RecordingCapturer,
    TorchStatic,
    asking,
    is_as_eager,
)

CPU = torch.device("cpu")
BUCKETS = Buckets(32, 4)
PAGE_SIZE = 4


def by_torch(lm: CausalLM) -> StaticAttention:
    return TorchStatic(lm)


def by_flashinfer(lm: CausalLM) -> StaticAttention:
    """Through the package as it is documented; whole masks are small, so that there are all three forms."""
    backend = FlashInferAttention(lm.kv, PAGE_SIZE, library=documented, whole_mask=150)
    static = backend.static(lm.pool.tables, BUCKETS)
    assert static is not None
    return static


@pytest.fixture(
    params=[
        ("llama", by_torch),
        ("llama", by_flashinfer),
        ("windows and soft caps", by_flashinfer),
        ("windows and sinks", by_flashinfer),
        ("chunks", by_flashinfer),
    ],
    ids=lambda case: f"{case[0]} {case[1].__name__}",
)
def captured(request: pytest.FixtureRequest, folders: dict[str, Path]) -> CausalLM:
    kind, attention = request.param
    lm = CausalLM.load(folders[kind], num_pages=4096, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS, ALL_LAYERS, capturer=RecordingCapturer(), attention=attention(lm))
    return lm


@pytest.fixture
def lm(folders: dict[str, Path]) -> CausalLM:
    """Captured, with the torch backend."""
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS, capturer=RecordingCapturer(), attention=TorchStatic(lm, 60))
    return lm


def test_it_is_an_eager_forward_that_leaves_no_trace_of_its_padding(captured: CausalLM) -> None:
    lm, graphs = captured, captured.graphs
    assert graphs is not None

    @settings(max_examples=40)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        rows = asking(data, data.draw(ragged(PAGE_SIZE, 4, 40, lm.pool)).rows)
        is_as_eager(lm, rows, data.draw(LAYERS))

    law()
    assert graphs.statistics.replayed >= 20


def decoding(lm: CausalLM, lengths: list[int]) -> list[Row]:
    """A token of each of some sequences."""
    tables = [PageTable(lm.pool) for _ in lengths]
    for table, length in zip(tables, lengths, strict=True):
        table.reserve(length)
    return [Row.tree([5], [-1], table.upto(length)) for table, length in zip(tables, lengths, strict=True)]


def test_what_has_no_graph_is_run_eagerly_and_counted(lm: CausalLM) -> None:
    graphs = lm.graphs
    assert graphs is not None
    assert graphs.statistics.captured == len(BUCKETS) and graphs.statistics.nbytes == len(BUCKETS) << 20
    assert lm.forward(decoding(lm, [7])).shape == (1, 97)
    assert (graphs.statistics.replayed, graphs.statistics.eager) == (1, {})
    assert lm.forward(decoding(lm, [3, 3, 3, 3, 3])).shape == (5, 97), "more rows than any bucket"
    assert lm.forward(decoding(lm, [58, 5])).shape == (2, 97), "more to see than the static layout holds"
    assert graphs.statistics.eager == {Eager.SIZE: 1, Eager.LAYOUT: 1} and graphs.statistics.replayed == 1


def test_no_bucket_and_no_plan_allocates_or_moves_anything(lm: CausalLM) -> None:
    places: set[int] = set()
    for lengths in ([4], [9], [4, 4], [4, 4, 4], [30], [1, 1, 1, 1]) * 2:
        rows = decoding(lm, lengths)
        places.add(lm.forward(rows).data_ptr())
    assert len(places) == 1, "all buckets leave their logits in the same place"
    assert lm.graphs is not None and lm.graphs.statistics.captured == len(BUCKETS)


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_a_forward_is_launched_once_it_is_planned(
    captured: bool, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, order = CausalLM.load(folders["llama"], num_pages=64, page_size=PAGE_SIZE), list[str]()
    static = TorchStatic(lm)
    if captured:
        lm.capture_graphs(BUCKETS, capturer=RecordingCapturer(), attention=static)
    of = static if captured else lm.backend
    plan, compute = of.plan, lm.model.forward
    monkeypatch.setattr(of, "plan", lambda *told: (order.append("plan"), plan(*told))[1])
    monkeypatch.setattr(
        lm.model, "forward", lambda *told, **named: (order.append("compute"), compute(*told, **named))[1]
    )
    lm.forward_capturing(decoding(lm, [7]), (), lambda: order.append("launch"))
    assert order == ["plan", "launch", "compute"]


def test_nothing_is_captured_for_a_head_that_comes_what_graphs_leave_was_chosen_at_start(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    lm, capturer = CausalLM.load(folders["llama"], num_pages=64, page_size=PAGE_SIZE), RecordingCapturer()
    lm.capture_graphs(BUCKETS, {1, LAST}, capturer=capturer, attention=TorchStatic(lm))
    row = decoding(lm, [6])
    assert lm.forward_capturing(row, {1, LAST})[1].keys() == {1, LAST}
    lm.forward_capturing(row, {1})
    lm.forward(row)
    assert capturer.replays == 3, "a graph with more than is wanted will do"
    for _ in range(2):
        assert lm.forward_capturing(row, {1, 2})[1].keys() == {1, 2}
    assert (capturer.captures, capturer.replays) == (len(BUCKETS), 3)
    assert lm.graph_statistics.eager == {Eager.LAYERS: 2}
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "layers 1,2 is run eagerly" in told and "leave those of layers -1,1; name all of them in cuda_graph" in told
    with pytest.raises(Incompatible, match="hidden states of layer 9"):
        lm.forward_capturing(row, {9})
    with pytest.raises(Incompatible, match="hidden states of layer 9"):
        lm.capture_graphs(BUCKETS, {9}, capturer=capturer, attention=TorchStatic(lm))


def test_where_something_cannot_be_captured_all_is_run_eagerly_which_is_said_once_and_counted(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=PAGE_SIZE)
    row = decoding(lm, [6])
    expected = lm.forward(row).clone()
    lm.capture_graphs(BUCKETS, {1}, capturer=FailingCapturer(3), attention=TorchStatic(lm))
    for _ in range(2):
        logits, hidden = lm.forward_capturing(row, {1})
        assert torch.equal(logits, expected) and hidden[1].shape == (1, 32)
    assert lm.graph_statistics == GraphStatistics(eager={Eager.FAILED: 2}), "what was captured before is given up"
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "every forward is run eagerly, which is slower" in told and "stream is capturing" in told


class Allocator:
    """Pools as torch's allocator counts them: who is a user of them, and into which of them a capture is under way."""

    def __init__(self, *, closes: bool) -> None:
        """`closes`: torch closes the pool of a capture that could not be ended by itself, as later releases do."""
        self.users = {7: 3}
        self.open = set[int]() if closes else {7}

    def end(self, device: int, pool: int) -> None:
        if pool not in self.open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open.remove(pool)

    def release(self, device: int, pool: int) -> None:
        self.users[pool] -= 1


class Graph:
    """A graph whose capture has ended or has not."""

    def __init__(self, *, ended: bool) -> None:
        self._ended = ended

    def pool(self) -> int:
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return 7


@pytest.mark.parametrize("closes", [False, True])
def test_the_pool_of_a_capture_that_failed_is_left_as_by_one_that_ended(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator(closes=closes)
    monkeypatch.setattr("torch._C._cuda_endAllocateToPool", allocator.end)
    monkeypatch.setattr("torch._C._cuda_releasePool", allocator.release)
    failed: Any = Graph(ended=False)
    capturer.leave(7, failed, 0)
    assert (allocator.open, allocator.users) == (set(), {7: 2})
    ended: Any = Graph(ended=True)
    capturer.leave(7, ended, 0)
    assert allocator.users == {7: 2}, "a graph that has one gives its use up when it goes"


def test_what_a_captured_forward_reads_is_two_to_four_copies(folders: dict[str, Path]) -> None:
    """Tokens and all that is of their number; page numbers; and where there are trees masks, and page numbers in front of them."""
    lm = CausalLM.load(folders["llama"], num_pages=256, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS, capturer=RecordingCapturer(), attention=by_flashinfer(lm))
    tables = [PageTable(lm.pool) for _ in range(2)]
    for table in tables:
        table.reserve(200)
    forked = [-1, 0, 0]
    for length, parents, copies in ((40, [-1], 2), (8, forked, 3), (200, forked, 4)):
        rows = [Row.tree([5] * len(parents), parents, table.upto(length)) for table in tables]
        with counted_copies() as found:
            lm.forward(rows)
        assert found == {"copies": copies}
    assert lm.graph_statistics.replayed == 3


def test_the_torch_backend_is_not_captured(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lm = CausalLM.load(folders["llama"], num_pages=64, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS)
    assert (
        lm.graphs is None
        and lm.graph_statistics == GraphStatistics()
        and f"attention = {lm.attention} runs eagerly" in caplog.text
    )


def test_capturing_tells_how_far_it_is(lm: CausalLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lm.capture_graphs(Buckets(4, 2), capturer=RecordingCapturer(), attention=TorchStatic(lm))
    assert [record.getMessage() for record in caplog.records] == [
        "captured forwards of 4 tokens: 2 of 5 graphs, 2 MiB",
        "captured forwards of 2 tokens: 4 of 5 graphs, 4 MiB",
        "captured forwards of 1 tokens: 5 of 5 graphs, 5 MiB",
    ]


@pytest.fixture
def lazy(folders: dict[str, Path]) -> CausalLM:
    """Only its largest forward is captured."""
    lm = CausalLM.load(folders["llama"], num_pages=256, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS, ALL_LAYERS, lazily=True, capturer=RecordingCapturer(), attention=TorchStatic(lm))
    return lm


def test_captured_lazily_the_largest_forward_stands_in_until_the_others_are_there(lazy: CausalLM) -> None:
    graphs = lazy.graphs
    assert graphs is not None and graphs.statistics.captured == 1
    rows, captured = decoding(lazy, [7]), 1
    while captured < len(BUCKETS):
        is_as_eager(lazy, rows, ALL_LAYERS)
        assert lazy.capture_next()
        captured += 1
        assert graphs.statistics.captured == captured
    is_as_eager(lazy, rows, ALL_LAYERS)
    assert not lazy.capture_next()
    assert graphs.statistics.eager == {} and graphs.statistics.replayed == captured


def test_what_is_missing_is_captured_largest_first_or_for_rows_or_once_it_was_missed_often(
    lazy: CausalLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert lazy.capture_next()
    assert caplog.messages == ["captured forwards of 32 tokens: 2 of 10 graphs, 2 MiB"]
    assert lazy.capture_next()
    assert len(caplog.messages) == 1, "there are others of 16 tokens"
    lazy.capture_for(decoding(lazy, [7]))
    lazy.capture_for(decoding(lazy, [7]))
    assert lazy.graph_statistics.captured == 4
    pair = decoding(lazy, [7, 5])
    for _ in range(MOST_MISSED):
        lazy.forward(pair)
    assert lazy.graph_statistics.captured == 4
    lazy.forward(pair)
    assert lazy.graph_statistics.captured == 5, "its own forward has been missed often"
    is_as_eager(lazy, pair, ALL_LAYERS)


def test_a_later_capture_that_fails_is_the_last_and_what_there_is_stays(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=256, page_size=PAGE_SIZE)
    lm.capture_graphs(BUCKETS, ALL_LAYERS, lazily=True, capturer=FailingCapturer(2), attention=TorchStatic(lm))
    assert lm.capture_next() and lm.capture_next() and not lm.capture_next()
    assert lm.graph_statistics.captured == 2
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert told.startswith("CUDA graphs of 2 kinds are captured, and no more") and "stream is capturing" in told
    is_as_eager(lm, decoding(lm, [7]), ALL_LAYERS)
    assert lm.graph_statistics.replayed == 1


def test_inputs_of_a_bucket_are_tokens_positions_slots_and_wanted_logits_then_padding(lm: CausalLM) -> None:
    inputs, tables = StaticInputs(lm.pool.tables, lm.spare_page, 16, CPU), [PageTable(lm.pool) for _ in range(2)]
    for table in tables:
        table.reserve(6)
    rows = [Row.tree([7, 8, 9], [-1, 0, 0], tables[0].upto(6)), Row.chunk([3, 4], tables[1].upto(5), [1])]
    bucket = Bucket(8, 4)
    padded = inputs.padded(rows, bucket)
    assert [row.num_tokens for row in padded] == [3, 2, 3] and padded[2].pages.length == 3
    inputs.load(padded, bucket, 0)
    read = inputs.of(bucket)
    assert read.tokens.tolist() == [7, 8, 9, 3, 4, 0, 0, 0]
    assert read.positions.tolist() == [3, 4, 4, 3, 4, 0, 0, 0]
    assert read.write_slots.tolist() == [3, 4, 5, 11, 12, 256, 257, 258], "the pool has 64 pages of 4"
    assert read.logits_at.tolist() == [0, 1, 2, 4, 0, 0, 0, 0]
    full = [Row.chunk(range(6), tables[0].upto(6)), Row.chunk([1, 2], tables[1].upto(2))]
    assert inputs.padded(full, bucket) == full


def test_inputs_say_where_layers_with_a_window_keep_their_tokens_and_padding() -> None:
    windows = WindowPages(8, 3, PAGE_SIZE, [Span(window=5)])
    pool = PagePool(8, PAGE_SIZE, (ALL, Span(window=5)), windows)
    table = PageTable(pool)
    table.reserve(11)
    table.see(9, 11)
    inputs, bucket = StaticInputs(pool.tables, pool.spare_page, 4, CPU), Bucket(4, 2)
    inputs.load(inputs.padded([Row.chunk([1, 2], table.upto(11))], bucket), bucket, 0)
    read = inputs.of(bucket)
    assert read.write_slots.tolist() == [9, 10, 32, 33]
    assert read.window_write_slots.tolist() == [5, 6, 12, 13], "on the second window page, and behind the third"


@given(st.integers(1, 9), st.integers(1, 30), st.data())
def test_the_slots_of_new_tokens_are_the_last_that_their_row_sees(
    page_size: int, length: int, data: st.DataObject
) -> None:
    batch = data.draw(ragged(page_size, 2, length))
    for row in batch.rows:
        tables, own = batch.pool.tables, RowPages(row.pages.table, row.pages.length, row.pages.own)
        slots = tables.slots_of(tables.listed(own).astype(np.int64))[: row.pages.length]
        assert tables.last_slots(row.pages, row.num_tokens).tolist() == slots[-row.num_tokens :].tolist()


def test_two_halves_of_host_memory_take_turns_for_one_place_on_the_device() -> None:
    both, upload = Halves(CPU), Upload(4, torch.int64, CPU)
    halves = [both.take() for _ in range(3)]
    assert halves[0] == halves[2] != halves[1]
    upload.host(halves[0])[:3] = [1, 2, 3]
    upload.host(halves[1])[:3] = [7, 8, 9]
    assert upload.send(halves[0], 3).tolist() == [1, 2, 3] == upload.memory[:3].tolist()
    assert upload.send(halves[1], 2).data_ptr() == upload.memory.data_ptr()
    assert upload.memory.tolist() == [7, 8, 3, 0]

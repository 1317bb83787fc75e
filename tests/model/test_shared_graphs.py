"""Captured forwards of a rank group: all ranks replay the same one, and each gets what the eager group would have given it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PretrainedConfig, Qwen3MoeConfig

from specsplit.errors import Incompatible, RankLost
from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.attention.flashinfer.attention import FlashInferAttention
from specsplit.model.graphs import Bucket, Buckets, Captured, Results, SharedCapturer, StaticAttention
from specsplit.ranks.demand import EAGER, Demand
from specsplit.records import Eager
from tests.model import documented
from tests.model.ragged import ragged
from tests.support.graphs import LAYERS, FailingCapturer, RecordingCapturer, TorchStatic, WatchedCapturer, asking
from tests.support.meshes import Collective
from tests.support.rounding import assert_same_sums
from tests.support.shared_graphs import Brought, SharedModels

BUCKETS = Buckets(32, 4)
PAGE_SIZE, LAYERS_OF_MODEL, WIDTH = 4, 3, 32
IDLE = Brought()
Saved = Callable[[PretrainedConfig], Path]
TOO_LARGE = (
    "OutOfMemoryError: capturing CUDA graphs: none left (cuda_graphs = off does without; lower cuda_graph_tokens and cuda_graph_rows "
    "make them smaller)"
)


@pytest.fixture(scope="module")
def kinds(folders: dict[str, Path], saved: Saved, tiny_config: Callable[..., dict[str, Any]]) -> dict[str, Path]:
    """A dense model, and one of experts."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return {"dense": folders["llama"], "experts": saved(Qwen3MoeConfig(**tiny_config(**experts)))}


@pytest.fixture
def two(kinds: dict[str, Path]) -> SharedModels:
    """Two ranks of the dense model, of which nothing is captured yet."""
    return SharedModels.load(kinds["dense"], 2)


def by_flashinfer(lm: CausalLM) -> StaticAttention:
    """Through the package as it is documented; whole masks are small, so that there are all three forms."""
    backend = FlashInferAttention(lm.kv, PAGE_SIZE, library=documented, whole_mask=150)
    static = backend.static(lm.pool.tables, BUCKETS)
    assert static is not None and len(static.forms) == 3
    return static


@st.composite
def turns(draw: st.DrawFn, lm: CausalLM) -> Brought:
    """What one rank may have in a turn: nothing, trees and short chunks, or more than any bucket holds."""
    kind = draw(st.sampled_from(["idle", "rows", "rows", "rows", "long"]))
    if kind == "idle":
        return IDLE
    if kind == "long":
        table = PageTable(lm.pool)
        table.reserve(40)
        return Brought([Row.chunk([9] * 40, table.upto(40), logits_at=[39])], draw(LAYERS))
    rows = draw(ragged(PAGE_SIZE, 3, 30, lm.pool)).rows
    return Brought(asking(draw(st.data()), rows), draw(LAYERS))


@pytest.mark.parametrize(
    ("kind", "size", "attention", "examples"),
    [
        ("dense", 2, by_flashinfer, 12),
        ("dense", 4, TorchStatic, 10),
        ("experts", 2, TorchStatic, 12),
        ("experts", 4, by_flashinfer, 6),
    ],
)
def test_every_rank_gets_what_the_eager_group_gives_it_and_all_replay_the_same(
    kinds: dict[str, Path], kind: str, size: int, attention: Callable[[CausalLM], StaticAttention], examples: int
) -> None:
    models = SharedModels.load(kinds[kind], size, num_pages=4096)
    capturers = [RecordingCapturer() for _ in range(size)]
    models.capture(BUCKETS, attention, capturers)
    captured = 0

    @settings(max_examples=examples)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        nonlocal captured
        brought = [data.draw(turns(lm)) for lm in models.lms]
        captured += are_as_eager(models, brought)
        replayed, *others = (capturer.replayed for capturer in capturers)
        assert all(other == replayed for other in others), "the same capture on every rank, turn for turn"
        assert len(replayed) == captured

    law()
    assert are_as_eager(models, [decoding(lm, [7]) for lm in models.lms]), (
        "whatever was drawn above, such turns are captured"
    )


def are_as_eager(models: SharedModels, brought: Sequence[Brought]) -> bool:
    """Run a turn with graphs and without, over the same random KV -> whether it was captured.

    Logits, hidden states and KV are equal but for rounding; nothing but the KV of the rows and that of the spare page is touched.
    """
    for lm in models.lms:
        lm.kv.data.normal_()
        lm.kv.data[:, :, -PAGE_SIZE:] = 0  # nothing but padding is ever written there
    before, start = [lm.kv.data.clone() for lm in models.lms], len(models.meshes[0].collectives)
    found = models.turns(brought)
    kv = [lm.kv.data.clone() for lm in models.lms]
    for lm, data in zip(models.lms, before, strict=True):
        lm.kv.data.copy_(data)
    collectives = [mesh.collectives[start:] for mesh in models.meshes]
    expected = models.turns(brought, eager=True)
    for rank, lm in enumerate(models.lms):
        (logits, hidden), (whole, states) = found[rank][1], expected[rank][1]
        assert_same_sums(logits, whole)
        assert hidden.keys() == states.keys() == set(brought[rank].layers)
        for layer in states:
            assert_same_sums(hidden[layer], states[layer])
        kv_is(lm, brought[rank].rows, kv[rank], before[rank])
    (demand,) = {demand for demand, _ in found}
    assert all(each == collectives[0] for each in collectives)
    runs = any(each.tokens for each in brought)
    if runs and not demand.eager:
        bucket = BUCKETS.fit(demand.tokens, demand.rows)
        assert bucket is not None and forward_of(len(brought), bucket) == collectives[0][-2 * LAYERS_OF_MODEL :]
    return runs and not demand.eager


def kv_is(lm: CausalLM, rows: Sequence[Row], kv: torch.Tensor, before: torch.Tensor) -> None:
    """What the rows wrote is what `lm` holds now, and all else is as before."""
    slots = [lm.pool.tables.last_slots(row.pages, row.num_tokens) for row in rows]
    written = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *slots]))
    assert_same_sums(kv[:, :, written], lm.kv.data[:, :, written])
    kept = torch.ones(lm.kv.num_slots, dtype=torch.bool)
    kept[written] = kept[-PAGE_SIZE:] = False
    assert torch.equal(kv[:, :, kept], before[:, :, kept])


def forward_of(size: int, bucket: Bucket) -> list[Collective]:
    """What ranks exchange in a captured forward."""
    gathered = Collective("gather", (bucket.tokens, WIDTH), torch.float32)
    return [gathered, Collective("reduce_scatter", (size * bucket.tokens, WIDTH), torch.float32)] * LAYERS_OF_MODEL


def decoding(lm: CausalLM, lengths: Sequence[int], layers: Collection[int] = ()) -> Brought:
    """A token of each of some sequences."""
    tables = [PageTable(lm.pool) for _ in lengths]
    for table, length in zip(tables, lengths, strict=True):
        table.reserve(length)
    return Brought([Row.tree([5], [-1], table.upto(at)) for table, at in zip(tables, lengths, strict=True)], layers)


def prompt(lm: CausalLM, tokens: int) -> Brought:
    table = PageTable(lm.pool)
    table.reserve(tokens)
    return Brought([Row.chunk([7] * tokens, table.upto(tokens), [tokens - 1])])


def test_an_idle_rank_replays_the_bucket_of_the_busiest(kinds: dict[str, Path]) -> None:
    models = SharedModels.load(kinds["dense"], 4)
    models.capture(BUCKETS)
    kv, start = models.lms[1].kv.data.clone(), len(models.meshes[0].collectives)
    brought = [decoding(models.lms[0], [7, 9, 3]), IDLE, prompt(models.lms[2], 11), IDLE]
    demands = {demand for demand, _ in models.turns(brought)}
    assert demands == {Demand(11, 3, 1)}
    told = Collective("exchange", (1 + len(EAGER.numbers),))
    for mesh in models.meshes:
        assert mesh.collectives[start:] == [told, *forward_of(4, Bucket(16, 4))]
    assert [lm.graph_statistics.replayed for lm in models.lms] == [1] * 4
    assert torch.equal(models.lms[1].kv.data[:, :, :-PAGE_SIZE], kv[:, :, :-PAGE_SIZE])


def test_a_turn_of_idle_ranks_replays_nothing(two: SharedModels) -> None:
    two.capture(BUCKETS)
    start = len(two.meshes[0].collectives)
    two.turns([IDLE, IDLE])
    assert len(two.meshes[0].collectives) == start + 1, "that is the exchange"
    assert [lm.graph_statistics.replayed for lm in two.lms] == [0, 0]


def test_where_one_rank_reads_a_long_prompt_all_run_eagerly_and_count_why(two: SharedModels) -> None:
    two.capture(BUCKETS)
    assert not are_as_eager(two, [decoding(two.lms[0], [6]), prompt(two.lms[1], 40)])
    # are_as_eager runs each turn twice, the second time without asking for a graph
    reasons = [lm.graph_statistics.eager for lm in two.lms]
    assert reasons[0][Eager.GROUP] >= 1 and Eager.SIZE not in reasons[0]
    assert reasons[1][Eager.SIZE] == 1
    assert are_as_eager(two, [decoding(two.lms[0], [6]), decoding(two.lms[1], [8])])
    assert [lm.graph_statistics.replayed for lm in two.lms] == [1, 1]


def test_where_one_rank_wants_hidden_states_that_no_graph_leaves_all_run_eagerly_and_count_why(
    two: SharedModels, caplog: pytest.LogCaptureFixture
) -> None:
    two.capture(BUCKETS, layers={1, LAST})
    others = decoding(two.lms[0], [6], {LAST})
    assert not are_as_eager(two, [others, decoding(two.lms[1], [6], {2})])
    reasons = [lm.graph_statistics.eager for lm in two.lms]
    assert reasons[0][Eager.GROUP] >= 1 and Eager.LAYERS not in reasons[0]
    assert reasons[1][Eager.LAYERS] == 1 and caplog.text.count("name all of them in cuda_graph_layers") == 1
    assert are_as_eager(two, [others, decoding(two.lms[1], [6], {1})])
    assert [lm.graph_statistics.replayed for lm in two.lms] == [1, 1]


def test_a_layer_that_the_model_lacks_is_refused_before_other_ranks_hear_of_it(two: SharedModels) -> None:
    two.capture(BUCKETS)
    exchanges = two.meshes[0].exchanges
    with pytest.raises(Incompatible, match="hidden states of layer 9"):
        two.turn(0, decoding(two.lms[0], [6], {9}))
    assert two.meshes[0].exchanges == exchanges


class FailingStatic(TorchStatic):
    """Fails where rows are laid out, once for every time that it is told to."""

    failures = 0

    def plan(self, rows: Sequence[Row], bucket: Bucket, form: Any, half: int) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no room for pages")
        super().plan(rows, bucket, form, half)


def test_a_rank_that_fails_before_it_replays_holds_nobody_up(two: SharedModels) -> None:
    statics = [FailingStatic(lm) for lm in two.lms]
    two.on_all(lambda rank: two.capture_one(rank, BUCKETS, lambda _: statics[rank]))
    brought = [decoding(two.lms[0], [7]), decoding(two.lms[1], [9])]
    _, (expected, _) = two.turns(brought)[0]
    statics[1].failures = 1

    def turn(rank: int) -> torch.Tensor | str:
        try:
            return two.turn(rank, brought[rank])[1][0]
        except RuntimeError as error:
            return str(error)

    logits, failure = two.on_all(turn)
    assert failure == "no room for pages" and isinstance(logits, torch.Tensor)
    assert_same_sums(logits, expected)
    assert [lm.graph_statistics.replayed for lm in two.lms] == [2, 2], "on padding alone, where the rows failed"
    assert are_as_eager(two, brought)


def test_a_rank_that_cannot_even_replay_padding_ends_the_group_and_says_why(two: SharedModels) -> None:
    statics = [FailingStatic(lm) for lm in two.lms]
    two.on_all(lambda rank: two.capture_one(rank, BUCKETS, lambda _: statics[rank]))
    brought = [decoding(two.lms[0], [7]), IDLE]
    statics[1].failures = 1
    said = lost(two, lambda rank: two.turn(rank, brought[rank]))
    assert said == ["rank 1 of 2 cannot go on, which ends its group: RuntimeError: no room for pages"] * 2
    assert two.lms[1].graph_statistics.captured == 0


@pytest.mark.parametrize("where", ["the end of a turn", "a launch", "a capture", "a capture that failed"])
def test_nothing_holds_what_was_captured_when_connections_to_lost_ranks_are_closed(
    two: SharedModels, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL waits for that without an end."""
    mesh, watched, held = two.meshes[0], WatchedCapturer(3 if where == "a capture that failed" else None), list[int]()
    mesh.before_parting(lambda: held.append(watched.held))  # first said, so last done
    capturers, assemble, left = [watched, RecordingCapturer()], mesh.assemble, iter(range(3))

    def missing() -> None:
        raise mesh.abort("the device still waits for it")

    def assembling(numbers: Sequence[int] = ()) -> Any:
        """Ranks tell each other what they would capture, and then of each graph whether they have it: there are two."""
        return missing() if next(left, None) is None else assemble(numbers)

    def work(rank: int) -> None:
        two.capture_one(rank, BUCKETS, capturer=capturers[rank])
        if rank == 0 and where == "a launch":
            watched.fail(RuntimeError("the device still waits for it"))
        elif rank == 0:
            monkeypatch.setattr(two.lms[0].blocks, "synchronize", missing)
        two.turn(rank, decoding(two.lms[rank], [7]))
        two.meshes[rank].exchange([rank])  # rank 1 may have been through its turn

    if where.startswith("a capture"):
        monkeypatch.setattr(mesh, "assemble", assembling)
    why = "RuntimeError: the device still waits for it" if where == "a launch" else "the device still waits for it"
    assert lost(two, work) == [f"rank 0 of 2 cannot go on, which ends its group: {why}"] * 2
    assert watched.captures == (3 if where.startswith("a capture") else len(BUCKETS))
    assert held == [0]


class Alone:
    """The only rank of its group (Together); what becomes of it is written down."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.lost = False

    def assemble(self, numbers: Sequence[int] = ()) -> Sequence[tuple[int, ...]]:
        self.done.append("assemble")
        return [tuple(numbers)]

    def turn(self, rows: Sequence[int]) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        self.done.append("synchronize")
        if self.lost:
            raise RankLost("missed")

    def or_leave(self) -> AbstractContextManager[None]:
        return nullcontext()

    def before_parting(self, work: Callable[[], object]) -> None: ...

    def work(self) -> Results:
        self.done.append("work")
        return {}


def test_the_first_run_of_what_is_captured_is_waited_for_with_an_end_before_anything_else_asks_for_the_device() -> None:
    alone = Alone()
    SharedCapturer(RecordingCapturer(), alone).capture(alone.work)
    assert alone.done == ["work", "synchronize", "work", "assemble"]
    alone.done.clear()
    alone.lost = True
    with pytest.raises(RankLost, match="missed"):
        SharedCapturer(RecordingCapturer(), alone).capture(alone.work)
    assert alone.done == ["work", "synchronize"]


def lost(models: SharedModels, work: Callable[[int], object]) -> list[str]:
    """How the group ends of some work, as each rank says."""

    def run(rank: int) -> str:
        try:
            work(rank)
        except RankLost as error:
            return str(error)
        return ""

    return models.on_all(run)


def test_what_one_rank_cannot_record_no_rank_captures(two: SharedModels, caplog: pytest.LogCaptureFixture) -> None:
    two.capture(BUCKETS, capturers=[RecordingCapturer(), FailingCapturer(3)])
    assert [lm.graph_statistics.captured for lm in two.lms] == [0, 0]
    assert caplog.text.count("rank 1 of 2 cannot record it") == 2
    brought = [decoding(two.lms[0], [7]), IDLE]
    assert not are_as_eager(two, brought), "the group goes on without"
    assert two.lms[0].graph_statistics.eager[Eager.FAILED] == 1


class Stumbling(RecordingCapturer):
    """Fails in the first run of what it is to capture, as a device does that has no memory left."""

    def capture(self, work: Callable[[], Results]) -> Captured:
        def out_of_memory(*_: Any) -> Any:
            raise torch.OutOfMemoryError("none left")

        model = self.lm.model
        model.lm_head.forward = out_of_memory  # pyright: ignore[reportAttributeAccessIssue]
        return super().capture(work)

    def __init__(self, lm: CausalLM) -> None:
        super().__init__()
        self.lm = lm


def test_a_rank_that_fails_in_what_is_not_yet_recorded_ends_the_group(two: SharedModels) -> None:
    capturers = [RecordingCapturer(), Stumbling(two.lms[1])]
    said = lost(two, lambda rank: two.capture_one(rank, BUCKETS, capturer=capturers[rank]))
    assert said == [f"rank 1 of 2 cannot go on, which ends its group: {TOO_LARGE}"] * 2


def test_a_rank_that_has_no_room_for_how_a_graph_attends_ends_the_group(two: SharedModels) -> None:
    """The others are in the first run of that graph by then."""

    class NoMemory(TorchStatic):
        def forward(self, bucket: Bucket, form: Any, write_slots: tuple[torch.Tensor, torch.Tensor]) -> Any:
            if bucket.tokens < BUCKETS.most_tokens:
                raise torch.OutOfMemoryError("none left")
            return super().forward(bucket, form, write_slots)

    said = lost(two, lambda rank: two.capture_one(rank, BUCKETS, (TorchStatic, NoMemory)[rank]))
    assert said == [f"rank 1 of 2 cannot go on, which ends its group: {TOO_LARGE}"] * 2


def test_a_rank_that_dies_while_the_others_capture_is_noticed(two: SharedModels) -> None:
    def capture(rank: int) -> None:
        if rank == 1:
            two.meshes[1].die()
        else:
            two.capture_one(rank, BUCKETS)

    assert lost(two, capture) == ["a rank of the mesh is dead", ""]


@pytest.mark.parametrize(
    ("other", "layers", "told"),
    [
        (None, {1}, r"\(0, 0, 0, 0\)"),
        (Buckets(16, 4), {1}, r"\(16, 4, 1, \1\)"),
        (Buckets(32, 1), {1}, r"\(32, 1, 1, \1\)"),
        (BUCKETS, {1, 2}, r"\(32, 4, 1, (?!\1)\d+\)"),
    ],
)
def test_ranks_that_are_not_told_the_same_capture_nothing_and_say_so(
    two: SharedModels, other: Buckets | None, layers: set[int], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    two.on_all(lambda rank: two.capture_one(rank, (BUCKETS, other)[rank], layers=({1}, layers)[rank]))
    assert [lm.graphs for lm in two.lms] == [None, None]
    assert caplog.text.count("cuda_graph_rows, cuda_graph_layers and attention alike on all of them") == 2
    assert len(re.findall(r"\(32, 4, 1, (\d+)\), " + told, caplog.text)) == 2


def test_ranks_that_are_all_told_to_capture_nothing_say_nothing(
    two: SharedModels, caplog: pytest.LogCaptureFixture
) -> None:
    two.on_all(lambda rank: two.capture_one(rank, None))
    assert [lm.graphs for lm in two.lms] == [None, None] and not caplog.text

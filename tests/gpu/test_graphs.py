"""CUDA graphs against eager forwards of the same backend, flashinfer and triton. These tests were written on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.attention.backends import check_backend
from specsplit.model.attention.choosing import ON_A_GPU
from specsplit.model.graphs import Buckets, CudaCapturer, Results
from tests.model.ragged import ragged
from tests.model.test_adapters import MIXED, mixed_logits, write_adapters
from tests.support.graphs import ALL_LAYERS, LAYERS, asking, is_as_eager, near

GPU = torch.device("cuda", 0)
BUCKETS = Buckets(64, 8)
FORMS = {"flashinfer": 3, "triton": 1}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(600),  # kernels may have to be compiled
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of three layers, with heads of 64."""
    torch.manual_seed(20)
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.05,
        bos_token_id=1,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[(name, size) for name in ON_A_GPU for size in (1, 16)], ids=str)
def lm(request: pytest.FixtureRequest, folder: Path) -> CausalLM:
    name, size = request.param
    try:
        check_backend(name, GPU)
    except LoadError as error:
        pytest.skip(str(error))
    pages = 32768 // size
    lm = CausalLM.load(folder, num_pages=pages, page_size=size, dtype="float16", device="cuda", backend=name)
    lm.capture_graphs(BUCKETS, ALL_LAYERS)
    return lm


def test_a_replay_is_an_eager_forward_that_leaves_no_trace_of_its_padding(lm: CausalLM) -> None:
    statistics = lm.graph_statistics
    assert statistics.captured == FORMS[lm.attention] * len(BUCKETS) and statistics.nbytes > 0

    @settings(max_examples=20)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        rows = asking(data, data.draw(ragged(lm.pool.page_size, 6, 40, lm.pool)).rows)
        is_as_eager(lm, rows, data.draw(LAYERS))

    law()
    assert lm.graph_statistics.replayed >= 10


def test_long_contexts_are_split_over_the_device_in_a_graph_too(lm: CausalLM) -> None:
    """The plan of a captured forward changes from step to step: how many parts a row is cut into, and where they go."""
    table = PageTable(lm.pool)
    table.reserve(6000)
    forked = [-1, 0, 0, 1, 1, 3]
    for length in (6, 5000, 40, 6000):
        is_as_eager(lm, [Row.tree([7] * 6, forked, table.upto(length))], ())
        is_as_eager(lm, [Row.tree([7], [-1], table.upto(length))], ())


def test_a_replay_waits_for_nothing_on_the_device_and_allocates_nothing(lm: CausalLM) -> None:
    tables = [PageTable(lm.pool) for _ in range(3)]
    for table in tables:
        table.reserve(300)
    forked = [-1, 0, 0, 1, 1, 3]
    steps = [
        [Row.tree([7] * 6, forked, tables[0].upto(300)), Row.chunk([7] * 40, tables[1].upto(120))],
        [Row.tree([7], [-1], table.upto(20)) for table in tables],
        [Row.tree([7] * 6, forked, tables[2].upto(40))],
    ]
    for rows in steps:
        lm.forward(rows)
    torch.cuda.synchronize()
    held, replayed = torch.cuda.memory_allocated(), lm.graph_statistics.replayed
    torch.cuda.set_sync_debug_mode("error")
    try:
        for rows in steps * 3:
            lm.forward(rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert lm.graph_statistics.replayed == replayed + 9 and torch.cuda.memory_allocated() == held


def test_rows_with_adapters_are_replayed_as_they_are_run_eagerly(folder: Path, tmp_path: Path) -> None:
    adapters = write_adapters(tmp_path, folder)
    lm = CausalLM.load(
        folder, num_pages=64, page_size=16, dtype="float16", device="cuda", gpu_layers=True, adapters=adapters
    )
    mixes = (MIXED, [0, 0], [3, 0, 1])
    expected = [mixed_logits(lm, mix) for mix in mixes]
    lm.capture_graphs(Buckets(128, 8), lazily=True)
    for mix, logits in zip(mixes, expected, strict=True):
        near(mixed_logits(lm, mix), logits)
    assert lm.graph_statistics.replayed == 2 * len(mixes) and not sum(lm.graph_statistics.eager.values())


def test_after_a_capture_that_failed_memory_comes_back_and_others_succeed() -> None:
    """Asking for a value cannot be recorded. What was used on two streams is freed only while no capture is taken to be under way."""
    capturer = CudaCapturer(GPU)
    numbers = torch.arange(1000.0, device=GPU)
    kept = capturer.capture(lambda: {"sum": numbers.sum()})

    def asking_back() -> Results:
        return {"sum": numbers * numbers.sum().item()}

    with pytest.raises(RuntimeError):
        capturer.capture(asking_back)
    assert torch.cuda.current_stream(GPU) == torch.cuda.default_stream(GPU)
    torch.cuda.synchronize()
    held, other = torch.cuda.memory_allocated(), torch.cuda.Stream(GPU)
    for _ in range(3):
        wide = torch.ones(1 << 24, device=GPU)
        with torch.cuda.stream(other):
            wide.sum()
            wide.record_stream(other)
        del wide
        torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held + (1 << 26)
    numbers += 1
    kept.replay()
    again = capturer.capture(lambda: {"sum": numbers.sum()})
    again.replay()
    assert kept.results["sum"].item() == again.results["sum"].item() == numbers.sum().item()

"""The flashinfer backend without a GPU: what it plans, run through a model of the package, is what the torch backend computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import CausalLM, Geometry, KVCache, PagePool, PageTable, Row, causal_mask
from specsplit.model.attention.backends import choose_backend
from specsplit.model.attention.flashinfer.attention import FlashInferAttention, obstacle
from specsplit.model.attention.flashinfer.forward import PagedKV
from specsplit.model.attention.flashinfer.plan import WHOLE_MASK, Form, in_order, plan_groups
from specsplit.model.attention.flashinfer.workspace import Heads, Workspaces
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.graphs import Bucket, Buckets
from specsplit.model.pages.geometry import Span
from tests.model import documented
from tests.model.ragged import ragged
from tests.support.rounding import assert_same_sums

CPU = torch.device("cpu")


@settings(max_examples=60)
@given(st.data())
def test_it_computes_what_torch_computes(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 16, 64]))
    group, head_dim = data.draw(st.sampled_from([1, 4, 8])), data.draw(st.sampled_from([8, 64]))
    batches = data.draw(ragged(page_size))
    scaling = data.draw(st.sampled_from([None, 0.3]))
    stored = data.draw(st.sampled_from([None, torch.float8_e4m3fn, torch.float8_e5m2]))
    kv = batches.filled(group, head_dim, torch.float32, CPU, stored)
    new = batches.tokens(group, head_dim, torch.float32, CPU)
    expected = TorchAttention(kv, page_size).plan(batches.batch(CPU)).attend(0, *new, scaling, {})
    whole_mask = data.draw(st.sampled_from([0, WHOLE_MASK]))
    backend = FlashInferAttention(kv, page_size, library=documented, whole_mask=whole_mask)
    found = backend.plan(batches.batch(CPU)).attend(0, *new, scaling, {})
    assert_same_sums(found, expected)


def test_a_model_gives_the_same_logits_with_either(llama: CausalLM) -> None:
    table = PageTable(llama.pool)
    table.reserve(14)
    rows = [
        Row.chunk(range(1, 9), table.upto(8), [7]),
        Row.tree([3, 1, 4, 1, 5, 9], [-1, 0, 0, 1, 1, 3], table.upto(14)),
    ]
    expected = [llama.forward([row]) for row in rows]
    other = FlashInferAttention(llama.kv, 4, library=documented, whole_mask=0)
    found = []
    for row in rows:
        batch = llama.inputs([row])
        call = {"position_ids": batch.positions[None], "use_cache": False, "logits_to_keep": batch.logits_at}
        with torch.inference_mode():
            found.append(llama.model(batch.tokens[None], **call, forward_batch=other.plan(batch)).logits[0])
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_sums(mine, theirs)


class Noted:
    """An event behind a plan: what was planned and waited for, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def synchronize(self) -> None:
        self.done.append("waited")

    def given(self, _: torch.device) -> Noted:
        self.done.append("planned")
        return self


def test_a_plan_is_made_once_the_copies_of_the_one_before_are_done(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, plan = Noted(), PagedKV.plan
    monkeypatch.setattr("specsplit.model.attention.flashinfer.attention.given_so_far", noted.given)
    monkeypatch.setattr(PagedKV, "plan", lambda *args: (noted.done.append("plan"), plan(*args)))
    backend, table = FlashInferAttention(llama.kv, 4, library=documented), PageTable(llama.pool)
    table.reserve(4)
    assert noted.done == ["plan", "planned"] * 2, "one of trees, and one of what they all see"
    noted.done.clear()
    for count in (1, 2, 3):
        backend.plan(llama.inputs([Row.chunk(range(count), table.upto(count), [0])]))
    assert noted.done == ["plan", "planned", *["waited", "plan", "planned"] * 2]


@pytest.fixture
def example() -> tuple[list[Row], PagePool]:
    """Two trees of five nodes behind nine and two tokens, with a chunk and a single token between them; four tokens to a page."""
    pool = PagePool(16, 4)
    tables = [PageTable(pool) for _ in range(4)]
    for table, length in zip(tables, (14, 6, 1, 7), strict=True):
        table.reserve(length)
    parents = [-1, 0, 1, 0, 2]
    first, second, third, fourth = tables
    rows = [
        Row.tree([1, 2, 3, 4, 5], parents, first.upto(14)),
        Row.chunk([1, 2, 3], second.upto(6)),
        Row.tree([1], [-1], third.upto(1)),
        Row.tree([1, 2, 3, 4, 5], parents, fourth.upto(7)),
    ]
    return rows, pool


def test_rows_in_order_need_no_mask_and_trees_only_one_for_what_lies_behind_their_whole_pages(
    example: tuple[list[Row], PagePool],
) -> None:
    rows, pool = example
    ordered, trees = plan_groups(rows, pool.tables, whole_mask=0)
    assert ordered.tokens == slice(5, 9) and ordered.prefix is None and ordered.seen.mask is None
    assert ordered.seen.qo_indptr.tolist() == [0, 3, 4]
    assert ordered.seen.kv_indptr.tolist() == [0, 2, 3]
    assert ordered.seen.indices.tolist() == [4, 5, 6]
    assert ordered.seen.last_page_len.tolist() == [2, 1]
    assert isinstance(trees.tokens, np.ndarray) and trees.tokens.tolist() == [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]
    assert trees.prefix is not None and trees.prefix.mask is None
    assert trees.prefix.kv_indptr.tolist() == [0, 2, 2] and trees.prefix.indices.tolist() == [0, 1]
    assert trees.prefix.last_page_len.tolist() == [4, 0] and trees.prefix.lengths.tolist() == [8, 0]
    assert trees.seen.qo_indptr.tolist() == [0, 5, 10]
    assert trees.seen.indices.tolist() == [2, 3, 7, 8] and trees.seen.lengths.tolist() == [6, 7]
    mask = trees.seen.mask
    assert mask is not None and len(mask) == 5 * 6 + 5 * 7
    shown = [
        ["110000", "111000", "111100", "110010", "111101"],
        ["1110000", "1111000", "1111100", "1110010", "1111101"],
    ]
    for start, lines in zip((0, 30), shown, strict=True):
        bits = "".join(lines)
        packed = mask[start : start + -(-len(bits) // 8)]
        assert "".join(map(str, np.unpackbits(packed, bitorder="little")[: len(bits)])) == bits


def test_where_there_is_little_to_see_all_of_it_is_masked(example: tuple[list[Row], PagePool]) -> None:
    rows, pool = example
    _, trees = plan_groups(rows, pool.tables, whole_mask=5 * 14 + 5 * 7)
    assert trees.prefix is None and trees.seen.lengths.tolist() == [14, 7]
    assert plan_groups(rows, pool.tables, whole_mask=5 * 14 + 5 * 7 - 1)[1].prefix is not None


def test_captured_forwards_of_many_heads_and_tokens_have_a_workspace_that_is_large_enough() -> None:
    pool = PagePool(40, 16)
    table = PageTable(pool)
    table.reserve(512)
    kv = KVCache(Geometry.uniform(1, 64, 8, 128), 640, torch.float16, CPU)
    static = FlashInferAttention(kv, 16, library=documented).static(pool.tables, Buckets(512, 64))
    static.plan([Row.chunk(range(512), table.upto(512))], Bucket(512, 64), Form.ORDERED, 0)


def test_a_workspace_is_as_large_as_the_package_asks_for() -> None:
    many, few = Heads(64, 8, 128, processors=132), Heads(32, 8, 128, processors=132)
    assert many.captured_bytes(Bucket(512, 64)) == 64 * (32 + 64) * 128 * (128 + 1) * 4 > 384 << 20
    assert few.captured_bytes(Bucket(256, 64)) == 32 * (8 + 64) * 128 * (128 + 1) * 4 < 384 << 20
    assert many.captured_bytes(Bucket(16, 1)) == many.eager_bytes() == 64 * 33 * 128 * (128 + 1) * 4
    assert many.captured_bytes(Bucket(1024, 1024)) == 64 * (512 + 1024) * 16 * (128 + 1) * 4, "short rows, small tiles"
    assert Heads(16, 8, 256, processors=132).eager_bytes() == 16 * 33 * 64 * (256 + 1) * 4, "wide heads, smaller tiles"


def test_a_workspace_is_shared_until_more_is_asked_for() -> None:
    held, heads = Workspaces(least=100), Heads(2, 1, 64, processors=1)
    first = held.of(CPU, heads)
    assert held.of(CPU, heads) is first and len(first) == heads.eager_bytes()
    larger = held.of(CPU, heads, Buckets(64, 4))
    assert len(larger) == max(map(heads.captured_bytes, Buckets(64, 4))) > len(first)
    assert held.of(CPU, heads) is larger
    with pytest.raises(LoadError, match=r"needs \d+ MiB beside the KV cache .*lower cuda_graph_tokens"):
        held.of(CPU, Heads(1 << 20, 1, 256, processors=1 << 20))


def test_a_chain_is_in_order_and_a_fork_is_not() -> None:
    assert in_order(causal_mask(1)) and in_order(causal_mask(5))
    assert not in_order(causal_mask(5)[1:])
    forked = causal_mask(5)
    forked[4, 3] = False
    assert not in_order(forked)
    forked[3, 4] = True  # as many as in order, and not those
    assert not in_order(forked)


def test_without_a_gpu_auto_is_torch_and_asking_for_it_says_what_to_do() -> None:
    kv = KVCache(Geometry.uniform(1, 2, 2, 64), 4, torch.float32, CPU)
    assert choose_backend("auto", kv) == choose_backend("torch", kv) == "torch"
    with pytest.raises(
        LoadError, match=r"needs an NVIDIA GPU, and the device is cpu; set device = cuda .* auto or torch"
    ):
        choose_backend("flashinfer", kv)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A machine that says it had a GPU and the package."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("specsplit.model.attention.flashinfer.attention.find_spec", lambda _: "there")
    return torch.device("cuda", 0)


def of(head_dim: int) -> Geometry:
    return Geometry.uniform(2, 4, 2, head_dim)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value_width": 128}, "layer 1 has keys of width 64 and values of width 128"),
        ({"span": Span(window=9)}, "layer 1 sees a window of 9 tokens"),
        ({"span": Span(chunk=9)}, "layer 1 sees chunks of 9 tokens"),
        ({"softcap": 3.0}, "layer 1 has a soft cap in its attention"),
        ({"sinks": True}, "layer 1 has sinks in its attention"),
        ({"kv_heads": 1}, "layer 1 has other heads than layer 0"),
    ],
)
def test_layers_that_it_is_not_used_for_are_told_by_number(
    hopper: torch.device, changes: dict[str, Any], why: str
) -> None:
    plain, *_ = of(64).layers
    assert why in str(obstacle(hopper, torch.float16, Geometry((plain, replace(plain, **changes)))))


def test_what_it_cannot_do_is_told_with_what_to_do(hopper: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert [obstacle(hopper, dtype, of(head_dim)) for head_dim in (64, 128, 256)] == [None] * 3
    assert obstacle(hopper) is None
    assert "float32; set dtype = bfloat16" in str(obstacle(hopper, torch.float32, of(64)))
    assert "heads of layer 0 are 80 wide, and it takes 64, 128, 256" in str(obstacle(hopper, torch.float16, of(80)))
    monkeypatch.setattr(
        "specsplit.model.attention.flashinfer.attention.find_spec", lambda name: name == "flashinfer" or None
    )
    assert "the package ninja is missing; install specsplit[gpu]" in str(obstacle(hopper))


def test_what_fails_in_the_package_is_a_load_error_that_says_what_does_without() -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("nvcc not found")

    kv = KVCache(Geometry.uniform(1, 2, 2, 64), 4, torch.float32, CPU)
    with pytest.raises(LoadError, match=r"attention = torch does without it.*nvcc not found"):
        FlashInferAttention(kv, 1, library=Broken())  # pyright: ignore[reportArgumentType]

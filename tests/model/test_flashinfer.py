"""The flashinfer backend without a GPU: what it plans, run through a model of the package, is what the torch backend computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DeepseekV3Config

from specsplit.errors import LoadError
from specsplit.model import CausalLM, Geometry, KVCache, PagePool, PageTable, Row, causal_mask
from specsplit.model.attention.backends import require_backend
from specsplit.model.attention.choosing import backend_over
from specsplit.model.attention.flashinfer.attention import FlashInferAttention, obstacle, uncompiled
from specsplit.model.attention.flashinfer.forward import PagedKV
from specsplit.model.attention.flashinfer.kinds import Kinds
from specsplit.model.attention.flashinfer.plan import WHOLE_MASK, Form, Group, in_order, plan_groups
from specsplit.model.attention.flashinfer.sinks import with_sinks
from specsplit.model.attention.flashinfer.workspace import Heads, Workspaces
from specsplit.model.attention.softmax import SINKS, attend
from specsplit.model.attention.torch_attention import TorchAttention
from specsplit.model.graphs import Bucket, Buckets
from specsplit.model.pages.batch import visible
from specsplit.model.pages.geometry import ALL, NO_ATTENTION, Layer, Span
from specsplit.model.pages.input_batch import InputBatch
from tests.model import documented
from tests.model.attended import SPANS, new_tokens, slots_of
from tests.model.conftest import Saved
from tests.model.ragged import cache_of, pools, ragged, slots_in
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


@st.composite
def described(draw: st.DrawFn) -> Layer:
    """A layer that is served: of any span, soft cap and heads, with sinks or without, its values as wide as its keys."""
    kv_heads, group, width = draw(st.sampled_from([(1, 3, 8), (2, 1, 8), (2, 4, 16)]))
    softcap = draw(st.sampled_from([None, 0.7]))
    return Layer(kv_heads * group, kv_heads, width, width, draw(SPANS), softcap, draw(st.booleans()))


@settings(max_examples=80)
@given(st.data())
def test_layers_of_any_span_soft_cap_and_sinks_are_computed_as_torch_does(data: st.DataObject) -> None:
    """Whatever is on pages that lie before all that a row's new tokens see is NaN, and so are layers of another row."""
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    layers = data.draw(st.lists(described(), min_size=1, max_size=4))
    geometry = Geometry((*layers, NO_ATTENTION))
    batches = data.draw(ragged(page_size, most_tokens=120, pool=data.draw(pools(geometry, page_size, most_tokens=120))))
    kv = cache_of(geometry, batches.pool, torch.float32)
    whole_mask = data.draw(st.sampled_from([0, WHOLE_MASK]))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    for number, layer in enumerate(layers):
        for row in batches.rows:
            first = visible(row, layer.span)[0] // page_size * page_size
            store(kv, number, slots_in(kv, number, batches.pool, slots_of(row, batches.pool)[first:]))
    store(kv, 0, np.zeros(1, dtype=np.int64))  # what it is tried with when it is made
    mine = FlashInferAttention(kv, page_size, library=documented, whole_mask=whole_mask).plan(batches.batch(CPU))
    theirs = TorchAttention(kv, page_size).plan(batches.batch(CPU))
    for number, layer in enumerate(layers):
        query, key, value, sinks = new_tokens(layer, sum(row.num_tokens for row in batches.rows))
        expected = theirs.attend(number, query, key, value, 0.4, {SINKS: sinks})
        assert_same_sums(mine.attend(number, query, key, value, 0.4, {SINKS: sinks}), expected)


@settings(max_examples=40)
@given(st.data())
def test_layers_that_keep_latents_are_computed_as_torch_does(data: st.DataObject) -> None:
    """Of trees, whose nodes have no masks there, and of rows in order; beside a layer that keeps heads."""
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    heads, scaling = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([None, 0.1]))
    layers = Layer(heads, 1, 576, 512, values_in_keys=True), Layer(2, 1, 8, 8, Span(window=5))
    batches = data.draw(ragged(page_size, most_tokens=60))
    kv = KVCache(Geometry(layers), batches.pool.num_slots, torch.float32, CPU)
    for tensor in kv.tensors:
        tensor.fill_(torch.nan)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    for number in range(2):
        for slots in (np.zeros(1, dtype=np.int64), *(slots_of(row, batches.pool) for row in batches.rows)):
            store(kv, number, slots)
    backend = FlashInferAttention(kv, page_size, library=documented)
    for _ in range(2):
        mine, theirs = (each.plan(batches.batch(CPU)) for each in (backend, TorchAttention(kv, page_size)))
        for number, layer in enumerate(layers):
            query, key, value, _ = new_tokens(layer, sum(row.num_tokens for row in batches.rows))
            if layer.values_in_keys:
                value = key[..., : layer.value_width]
            expected = theirs.attend(number, query, key, value, scaling, {})
            assert_same_sums(mine.attend(number, query, key, value, scaling, {}), expected)


def test_what_does_not_fit_into_a_plan_over_latents_is_refused() -> None:
    pool = PagePool(500, 16)
    table = PageTable(pool)
    table.reserve(8000)
    layer = Layer(128, 1, 576, 512, values_in_keys=True)
    kv = KVCache(Geometry((layer,)), 16, torch.float16, CPU)
    backend = FlashInferAttention(kv, 16, library=documented)
    assert backend.static(pool.tables, Buckets(8, 2)) is None
    row = Row.chunk(range(8000), table.upto(8000))
    with pytest.raises(ValueError, match=r"8000 tokens by 128 heads .* takes 16001 tiles.*set step_token_budget lower"):
        backend.plan(InputBatch([row], pool.tables, CPU))


def store(kv: KVCache, number: int, slots: np.ndarray) -> None:
    """Random keys and values."""
    layer = kv.geometry.layers[number]
    key = torch.randn(len(slots), layer.kv_heads, layer.key_width)
    value = torch.randn(len(slots), layer.kv_heads, layer.value_width)
    kv.write(number, torch.from_numpy(slots), key, value)


@settings(max_examples=40)
@given(st.sampled_from([(1, 1), (2, 3)]), st.integers(1, 9), st.integers(1, 9), st.floats(-30, 30), st.booleans())
def test_sinks_are_told_by_the_sum_of_weights_alone(
    heads: tuple[int, int], queries: int, length: int, about: float, nothing: bool
) -> None:
    kv_heads, group = heads
    layer = Layer(kv_heads * group, kv_heads, 8, 8, sinks=True)
    query, sinks = torch.randn(queries, layer.num_heads, 8), torch.randn(layer.num_heads) + about
    keys, values = torch.randn(2, length, kv_heads, 8)
    shown = torch.full((queries, length), not nothing)
    out, weight = documented.attended(query, keys, values, 0.4, 0.0, shown)
    found = with_sinks(out, weight, sinks)
    if nothing:
        assert not found.any()
        return
    folded = query.reshape(queries, kv_heads, group, 8).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, 8)
    by_head = [each.transpose(0, 1)[None] for each in (keys, values)]
    expected = attend(layer, folded, by_head[0], by_head[1], None, 0.4, {SINKS: sinks})
    expected = expected.view(kv_heads, group, queries, 8).permute(2, 0, 1, 3).reshape(found.shape)
    assert_same_sums(found, expected)


@pytest.mark.parametrize(
    "kind", ["llama", "windows", "windows and soft caps", "windows and sinks", "chunks", "delta rules"]
)
def test_a_model_gives_the_same_logits_with_either(folders: dict[str, Path], kind: str) -> None:
    gives_the_same_logits_with_either(CausalLM.load(folders[kind], num_pages=8, page_size=4))


def test_a_model_with_latents_gives_the_same_logits_with_either(
    saved: Saved, tiny_config: Callable[..., dict[str, Any]]
) -> None:
    widths = {"q_lora_rank": 16, "kv_lora_rank": 512, "qk_nope_head_dim": 8, "qk_rope_head_dim": 64, "v_head_dim": 8}
    config = DeepseekV3Config(**tiny_config(num_key_value_heads=4, first_k_dense_replace=3, **widths))
    lm = CausalLM.load(saved(config), num_pages=8, page_size=4)
    assert lm.kv.geometry.layers[0].values_in_keys
    gives_the_same_logits_with_either(lm)


def gives_the_same_logits_with_either(lm: CausalLM) -> None:
    expected = logits(lm)
    vars(lm)["backend"] = FlashInferAttention(lm.kv, 4, library=documented, whole_mask=0)
    for mine, theirs in zip(logits(lm), expected, strict=True):
        assert_same_sums(mine, theirs)


def logits(lm: CausalLM) -> list[Tensor]:
    """Of a prompt and of the tree behind it."""
    table = PageTable(lm.pool)
    table.reserve(22)
    prompt = Row.chunk(range(1, 17), table.upto(16), [7, 15])
    tree = Row.tree([3, 1, 4, 1, 5, 9], [-1, 0, 0, 1, 1, 3], table.upto(22))
    of_prompt = lm.forward([prompt])
    lm.keep_states([(prompt, 15)])
    both = [of_prompt, lm.forward([tree])]
    table.release()
    return both


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
    monkeypatch.setattr("specsplit.model.attention.flashinfer.part.given_so_far", noted.given)
    monkeypatch.setattr(PagedKV, "plan", lambda *args: (noted.done.append("plan"), plan(*args)))
    backend, table = FlashInferAttention(llama.kv, 4, library=documented), PageTable(llama.pool)
    table.reserve(4)
    assert noted.done == ["plan", "planned"] * 3, "one of rows in order, one of trees, and one of what they all see"
    noted.done.clear()
    for count in (1, 2, 3):
        backend.plan(llama.inputs([Row.chunk(range(count), table.upto(count), [0])]))
    assert noted.done == ["waited", "plan", "planned"] * 3


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


def test_pages_before_a_window_are_not_listed_and_those_in_which_it_begins_are_masked(
    example: tuple[list[Row], PagePool],
) -> None:
    """The tree behind nine tokens: its nodes at depth 0, 1, 2, 1 and 3 see six or ten tokens each of their own path."""
    rows, pool = example
    ordered, trees = plan_groups(rows, pool.tables, 0, Span(window=6))
    assert ordered.seen.indices.tolist() == [4, 5, 6] and ordered.seen.lengths.tolist() == [6, 1], (
        "as far as it goes back"
    )
    assert trees.prefix is None, "no page is seen by all"
    assert trees.seen.indices.tolist() == [1, 2, 3, 7, 8] and trees.seen.lengths.tolist() == [10, 7]
    lines = ["1111110000", "0111111000", "0011111100", "0111110010", "0001111101"]
    assert shown_of(trees, 0, 5 * 10) == "".join(lines)
    ordered, trees = plan_groups(rows, pool.tables, 0, Span(window=10))
    assert trees.prefix is not None and trees.prefix.indices.tolist() == [1]
    assert trees.prefix.lengths.tolist() == [4, 0] and trees.prefix.last_page_len.tolist() == [4, 0]
    assert trees.seen.indices.tolist() == [0, 2, 3, 7, 8] and trees.seen.lengths.tolist() == [10, 7]
    lines = ["1111110000", "0111111000", "0011111100", "0111110010", "0001111101"]
    assert shown_of(trees, 0, 5 * 10) == "".join(lines), "the page on which windows begin, and the tail"


def shown_of(group: Group, start: int, count: int) -> str:
    """Bits of a mask, from the byte where a row's begin."""
    assert group.seen.mask is not None
    return "".join(map(str, np.unpackbits(group.seen.mask[start:], bitorder="little")[:count]))


def test_rows_of_one_chunk_that_begins_a_page_need_no_mask(example: tuple[list[Row], PagePool]) -> None:
    rows, pool = example
    ordered, _ = plan_groups(rows, pool.tables, 0, Span(chunk=8))
    assert ordered.seen.lengths.tolist() == [6, 1]
    (masked,) = plan_groups([rows[1]], pool.tables, 0, Span(chunk=5))
    assert masked.seen.mask is not None, "tokens 3, 4 and 5 are in two chunks"
    (masked,) = plan_groups([rows[1]], pool.tables, 0, Span(chunk=3))
    assert masked.seen.mask is not None and masked.seen.indices.tolist() == [4, 5], "the chunk begins within a page"
    pool_of_one = PagePool(16, 1)
    table = PageTable(pool_of_one)
    table.reserve(6)
    (ordered,) = plan_groups([Row.chunk([1, 2, 3], table.upto(6))], pool_of_one.tables, 0, Span(chunk=3))
    assert ordered.seen.mask is None and ordered.seen.indices.tolist() == [3, 4, 5]


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
    assert static is not None
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


def test_a_workspace_goes_with_the_last_that_uses_it() -> None:
    held, heads = Workspaces(least=100), Heads(2, 1, 64, processors=1)
    users = [held.of(CPU, heads) for _ in range(2)]
    memory = ref(users[0])
    del users[0]
    assert memory() is users[0]
    users.clear()
    assert memory() is None


def test_a_chain_is_in_order_and_a_fork_is_not() -> None:
    assert in_order(causal_mask(1)) and in_order(causal_mask(5))
    assert not in_order(causal_mask(5)[1:])
    forked = causal_mask(5)
    forked[4, 3] = False
    assert not in_order(forked)
    forked[3, 4] = True  # as many as in order, and not those
    assert not in_order(forked)


def test_without_a_gpu_auto_is_not_it_and_asking_for_it_says_what_to_do() -> None:
    kv = KVCache(Geometry.uniform(1, 2, 2, 64), 4, torch.float32, CPU)
    assert backend_over("auto", kv, 4)[0] in ("native", "torch") and backend_over("torch", kv, 4)[0] == "torch"
    with pytest.raises(
        LoadError, match=r"needs an NVIDIA GPU, and the device is cpu; set device = cuda .* auto or torch"
    ):
        require_backend("flashinfer", kv)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A machine that says it had a GPU and the package."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("specsplit.model.attention.flashinfer.attention.uncompiled", lambda: None)
    return torch.device("cuda", 0)


def packages(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """These packages are there, each a folder of its own."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    found = {name: SimpleNamespace(submodule_search_locations=[str(folder / name)]) for name in names}
    monkeypatch.setattr("specsplit.model.attention.flashinfer.attention.find_spec", found.get)


def test_its_kernels_are_compiled_by_nvcc_and_ninja_or_are_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    packages(monkeypatch, tmp_path)
    assert "the package flashinfer is missing" in str(uncompiled())
    packages(monkeypatch, tmp_path, "flashinfer")
    assert str(uncompiled()).startswith("ninja, ")
    packages(monkeypatch, tmp_path, "flashinfer", "ninja")
    assert "there is no nvcc" in str(uncompiled())
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(0o755)
    assert uncompiled() is None
    nvcc.unlink()
    packages(monkeypatch, tmp_path, "flashinfer", "flashinfer_jit_cache")
    assert uncompiled() is None
    packages(monkeypatch, tmp_path, "flashinfer")
    kernel = tmp_path / "flashinfer" / "data" / "aot" / "decode" / "decode.so"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert uncompiled() is None


def of(head_dim: int) -> Geometry:
    return Geometry.uniform(2, 4, 2, head_dim)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value_width": 128}, "layer 1 has keys of width 64 and values of width 128"),
        ({"key_width": 512, "value_width": 512}, "heads of layer 1 are 512 wide, and it takes 64, 128, 256"),
    ],
)
def test_layers_that_it_is_not_used_for_are_told_by_number(
    hopper: torch.device, changes: dict[str, Any], why: str
) -> None:
    plain, *_ = of(64).layers
    assert why in str(obstacle(hopper, torch.float16, Geometry((plain, replace(plain, **changes)))))


def test_layers_need_not_be_alike(hopper: torch.device) -> None:
    plain, *_ = of(64).layers
    others = {"span": Span(window=9)}, {"span": Span(chunk=9)}, {"softcap": 3.0}, {"sinks": True}, {"kv_heads": 1}
    layers = plain, NO_ATTENTION, *(replace(plain, **changes) for changes in others)
    assert obstacle(hopper, torch.float16, Geometry(layers)) is None
    assert "no layer has attention" in str(obstacle(hopper, torch.float16, Geometry((NO_ATTENTION,))))


def test_latents_are_served_of_one_size_and_of_16_bits(hopper: torch.device) -> None:
    latents = Layer(16, 1, 576, 512, values_in_keys=True)
    assert obstacle(hopper, torch.float16, Geometry((latents,)), torch.float16) is None
    for changes, stored, why in (
        (
            {"key_width": 288, "value_width": 256},
            None,
            "layer 0 keeps latents of 256 + 32 numbers, and it takes those of 512 + 64",
        ),
        (
            {"softcap": 3.0},
            None,
            "layer 0 keeps latents of which it sees a window or chunks, or has a soft cap or sinks",
        ),
        (
            {},
            torch.float8_e4m3fn,
            "layer 0 keeps latents, and it takes those of 16 bits alone; set kv_cache_dtype = auto",
        ),
    ):
        assert why in str(obstacle(hopper, torch.float16, Geometry((replace(latents, **changes),)), stored))


def test_layers_of_one_kind_share_their_wrappers() -> None:
    plain, *_ = of(64).layers
    sinks, window = replace(plain, sinks=True), replace(plain, span=Span(window=9))
    kinds = Kinds(Geometry((window, plain, NO_ATTENTION, sinks, window)))
    assert kinds.each == (window, plain) and kinds.of_layer == (0, 1, -1, 1, 0)
    assert kinds.spans == (Span(window=9), ALL) and [kinds.example(kind) for kind in kinds.each] == [0, 1]


def test_what_it_cannot_do_is_told_with_what_to_do(hopper: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert [obstacle(hopper, dtype, of(head_dim)) for head_dim in (64, 128, 256)] == [None] * 3
    assert obstacle(hopper) is None
    assert "float32; set dtype = bfloat16" in str(obstacle(hopper, torch.float32, of(64)))
    assert "heads of layer 0 are 80 wide, and it takes 64, 128, 256" in str(obstacle(hopper, torch.float16, of(80)))
    monkeypatch.setattr("specsplit.model.attention.flashinfer.attention.uncompiled", lambda: "there is no nvcc")
    assert obstacle(hopper) == "there is no nvcc"


def test_what_fails_in_the_package_is_a_load_error_that_says_what_does_without() -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("nvcc not found")

    kv = KVCache(Geometry.uniform(1, 2, 2, 64), 4, torch.float32, CPU)
    with pytest.raises(LoadError, match=r"attention = torch does without it.*nvcc not found"):
        FlashInferAttention(kv, 1, library=Broken())  # pyright: ignore[reportArgumentType]

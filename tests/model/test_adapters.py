"""Adapters beside a model's weights: each row of a forward is computed as by a model with the weights of its adapter merged into them."""

from __future__ import annotations

import gc
import json
import logging
import math
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specsplit.errors import Incompatible, LoadError
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.adapters.config import read_config
from specsplit.model.adapters.folder import LowRank, read_adapter
from specsplit.model.adapters.linear import AdaptedLinear
from specsplit.model.adapters.shares import Shares, shares_of
from specsplit.model.graphs import Buckets
from specsplit.model.layers.cpu import NativeLayer
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.model.lm.probe import probe_adapters
from specsplit.model.lm.revision import Revision
from specsplit.model.native import library
from specsplit.values import Adapter
from tests.support.adapters import EVERY, write_adapter
from tests.support.rounding import assert_as_exact

CPU = torch.device("cpu")
TREE, PARENTS, PATHS = [5, 6, 7, 8], [-1, 0, 0, 1], [[5], [5, 6], [5, 7], [5, 6, 8]]
ADAPTERS: Mapping[str, dict[str, Any]] = {
    "a": {"seed": 1, "rank": 4},
    "b": {"seed": 2, "rank": 9, "alpha": 3.0, "modules": ["q_proj", "down_proj"]},
    "stabilised": {"seed": 3, "rank": 16, "modules": ["v_proj", "o_proj"]},
}
MIXED = [2, 0, 1, 1, 3, 2]
"""Adapters of the rows of one forward: of some of them side by side, of others not."""
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Change = Callable[[Path], object]


def say(folder: Path, **fields: Any) -> None:
    """Change an adapter's config."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change an adapter's weights."""
    path = folder / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path)


def write_adapters(into: Path, target: Path) -> Path:
    """Write `ADAPTERS` of a target."""
    for name, each in ADAPTERS.items():
        write_adapter(into / name, target, **each)
    say(into / "stabilised", use_rslora=True)
    return into


def merged_model(target: Path, adapter: Path | None, dtype: torch.dtype) -> Any:
    """transformers' model with W + s B A in the place of each adapted W, summed up in float64."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64, **eager)
    if adapter is not None:
        said, tensors = (
            json.loads((adapter / "adapter_config.json").read_text()),
            load_file(adapter / "adapter_model.safetensors"),
        )
        scale = said["lora_alpha"] / (math.sqrt(said["r"]) if said["use_rslora"] else said["r"])
        with torch.no_grad():
            for name in [each for each in tensors if each.endswith("lora_A.weight")]:
                path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                change = tensors[name.replace("lora_A", "lora_B")].double() @ tensors[name].double()
                model.get_submodule(path).weight += scale * change
    return model.to(dtype).eval()


def mixed_logits(lm: CausalLM, adapters: Sequence[int]) -> Tensor:
    """Of prompts of different lengths, one for each of these adapters, and then of a tree behind each: logits [n + 4 n, V]."""
    prompts = prompts_of(len(adapters))
    tables = [PageTable(lm.pool) for _ in prompts]
    for table in tables:
        table.reserve(24)
    rows = list(zip(prompts, tables, adapters, strict=True))
    chunks = [Row.chunk(p, table.upto(len(p)), [len(p) - 1], adapter=own) for p, table, own in rows]
    first = lm.forward(chunks).clone()  # a captured forward overwrites it
    lm.keep_states([(chunk, chunk.num_tokens - 1) for chunk in chunks])
    second = lm.forward([Row.tree(TREE, PARENTS, table.upto(len(p) + 4), adapter=own) for p, table, own in rows])
    lm.keep_states(())
    for table in tables:
        table.release()
    return torch.cat([first, second])


def expected_logits(models: Sequence[Any], adapters: Sequence[int]) -> Tensor:
    """What `mixed_logits` gives, by a model for each adapter and the base, on one text after the other."""
    rows = list(zip(prompts_of(len(adapters)), adapters, strict=True))
    texts = [*rows, *(([*prompt, *path], own) for prompt, own in rows for path in PATHS)]
    with torch.inference_mode():
        return torch.stack([models[own](input_ids=torch.tensor([text])).logits[0, -1] for text, own in texts])


def prompts_of(count: int) -> list[list[int]]:
    return [list(range(2 + row, 9 + 2 * row)) for row in range(count)]


@pytest.fixture
def llama_adapters(folders: dict[str, Path], tmp_path: Path) -> Path:
    return write_adapters(tmp_path / "adapters", folders["llama"])


def load(folder: Path, adapters: Path | None, **options: Any) -> CausalLM:
    return CausalLM.load(folder, num_pages=64, page_size=4, adapters=adapters, **options)


@pytest.mark.parametrize("cpu_layers", [True, False], ids=["cpu layers", "transformers' layers"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "windows", "latents"])
def test_each_row_of_a_forward_has_the_logits_of_its_merged_weights(
    folders: dict[str, Path], tmp_path: Path, architecture: str, cpu_layers: bool
) -> None:
    target = folders[architecture]
    if architecture == "latents":
        adapters = tmp_path / "adapters"
        for seed, name in enumerate(ADAPTERS):
            write_adapter(
                adapters / name, target, seed, modules=["q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa", "o_proj"]
            )
    else:
        adapters = write_adapters(tmp_path / "adapters", target)
    lm = load(target, adapters, cpu_layers=cpu_layers)
    assert [each.name for each in lm.info.adapters] == [*ADAPTERS]
    exact, plain = (
        [merged_model(target, path, dtype) for path in (None, *(adapters / name for name in ADAPTERS))]
        for dtype in (torch.float64, torch.float32)
    )
    reference = expected_logits(exact, MIXED)
    assert_as_exact(mixed_logits(lm, MIXED), expected_logits(plain, MIXED), reference)
    base = expected_logits(exact, [0] * len(MIXED))
    apart = (reference - base).abs().amax(-1) / base.abs().amax(-1)
    changed = torch.tensor([*MIXED, *(own for own in MIXED for _ in PATHS)]) > 0
    assert bool((apart[changed] > 0.05).all()), "the adapters change what is compared"


@pytest.mark.parametrize("own", range(4))
def test_a_forward_of_one_adapter_alone_has_the_logits_of_its_merged_weights(
    folders: dict[str, Path], llama_adapters: Path, own: int
) -> None:
    path = None if own == 0 else llama_adapters / [*ADAPTERS][own - 1]
    exact, plain = (merged_model(folders["llama"], path, dtype) for dtype in (torch.float64, torch.float32))
    found = mixed_logits(load(folders["llama"], llama_adapters), [own])
    assert_as_exact(found, expected_logits([plain] * 4, [own]), expected_logits([exact] * 4, [own]))


def test_rows_without_an_adapter_have_the_bits_of_a_model_without_any(
    folders: dict[str, Path], llama_adapters: Path
) -> None:
    with_adapters, without = (load(folders["llama"], path, cpu_layers=False) for path in (llama_adapters, None))
    assert torch.equal(mixed_logits(with_adapters, [0, 0]), mixed_logits(without, [0, 0]))


RANKS = st.lists(st.integers(1, 64), min_size=1, max_size=4)


@given(RANKS, st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=8), st.booleans())
def test_an_adapted_layer_adds_what_merged_weights_would(
    ranks: list[int], rows: list[tuple[int, int]], bias: bool
) -> None:
    rows = [(min(own, len(ranks)), count) for own, count in rows]
    drawn = torch.Generator().manual_seed(len(rows))
    shares, inner = Shares(), nn.Linear(24, 12, bias=bias, dtype=torch.float64)
    layer = AdaptedLinear("layer", inner, shares)
    pairs = [LowRank(torch.randn(r, 24, generator=drawn), torch.randn(12, r, generator=drawn)) for r in ranks]
    for number, pair in enumerate(pairs[:-1], 1):  # the last adds nothing here
        layer.add(number, pair)
    queries = np.array([count for _, count in rows])
    starts = np.cumsum(queries) - queries
    tokens = torch.randn(1, int(queries.sum()), 24, generator=drawn, dtype=torch.float64)
    shares.begin(tokens.shape[1], shares_of([own for own, _ in rows], starts, queries, CPU))
    with torch.no_grad():
        found = layer(tokens)[0]
        for (own, count), start in zip(rows, starts.tolist(), strict=True):
            weight = inner.weight
            if 0 < own < len(ranks):
                weight = weight + pairs[own - 1].up.double() @ pairs[own - 1].down.double()
            wanted = nn.functional.linear(tokens[0, start : start + count], weight, inner.bias)
            torch.testing.assert_close(found[start : start + count], wanted)


def test_rows_side_by_side_are_a_run_and_others_are_listed() -> None:
    starts, queries = np.array([0, 3, 4, 6]), np.array([3, 1, 2, 2])
    one, two = shares_of([2, 1, 1, 2], starts, queries, CPU)
    assert (one.adapter, one.tokens) == (1, slice(3, 6))
    assert two.adapter == 2
    assert isinstance(two.tokens, Tensor)
    assert two.tokens.tolist() == [0, 1, 2, 6, 7]
    assert shares_of([0, 0], starts[:2], queries[:2], CPU) == []


def test_a_row_of_an_adapter_that_is_not_there_is_no_row_of_the_base(
    folders: dict[str, Path], llama_adapters: Path
) -> None:
    with pytest.raises(ValueError, match="a row with adapter 4 of 3"):
        mixed_logits(load(folders["llama"], llama_adapters), [4])
    with pytest.raises(ValueError, match="a row with adapter 1 of 0"):
        mixed_logits(load(folders["llama"], None), [1])


def test_layers_that_are_kernels_without_adapters_are_kernels_with_them_and_give_the_base_its_bits(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    if why := library.obstacle():
        pytest.skip(why)
    write_adapter(tmp_path / "a", folders["llama"], 1, modules=["q_proj", "up_proj"])
    rewrite(tmp_path / "a", lambda tensors: {name: each for name, each in tensors.items() if ".layers.1." in name})
    write_adapter(tmp_path / "b", folders["llama"], 2)
    lm, without = (load(folders["llama"], path) for path in (tmp_path, None))
    layers: Any = lm.model.get_submodule("model.layers")
    assert all(isinstance(layer, NativeLayer) for layer in layers)
    assert list(lm.adapters.kinds()) == [1, 2] and lm.adapters.layers_of(2) == []
    base, mixed = mixed_logits(without, [0] * 4), mixed_logits(lm, [0, 1, 0, 2])
    assert torch.equal(mixed_logits(lm, [0] * 4), base)
    adapted = torch.tensor([own > 0 for own in (0, 1, 0, 2, *(each for each in (0, 1, 0, 2) for _ in TREE))])
    assert torch.equal(mixed[~adapted], base[~adapted]), "beside rows with adapters too"
    assert not torch.isclose(mixed[adapted], base[adapted]).all(1).any()


def test_what_is_adapted_in_a_layer_that_is_no_kernel_is_packed_with_what_stands_beside_it(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    if why := library.obstacle():
        pytest.skip(why)
    write_adapter(tmp_path / "a", folders["latents"], 1, modules=["o_proj"])
    lm = load(folders["latents"], tmp_path)
    adapted = lm.adapters.layers_of(1)
    assert adapted and all(isinstance(layer.inner, PackedLinear) for layer in adapted)


def test_patterns_say_ranks_and_alphas_of_single_modules(folders: dict[str, Path], tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", folders["llama"], 1)
    say(
        tmp_path / "a",
        r=8,
        lora_alpha=16,
        rank_pattern={"0.self_attn.q_proj": 4, r"[12]\.mlp\.\w+": 2},
        alpha_pattern={"q_proj": 1},
    )
    config = read_config(tmp_path / "a")
    told = {
        "model.layers.0.self_attn.q_proj": (4, 0.25),
        "model.layers.1.self_attn.q_proj": (8, 0.125),
        "model.layers.0.mlp.up_proj": (8, 2.0),
        "model.layers.2.mlp.up_proj": (2, 8.0),
        "model.layers.10.self_attn.q_proj": (8, 0.125),
    }
    assert {name: (config.rank_of(name), config.scale_of(name)) for name in told} == told
    say(tmp_path / "a", use_rslora=True)
    assert read_config(tmp_path / "a").scale_of("model.layers.0.self_attn.q_proj") == 0.5


def test_names_of_the_whole_of_a_multimodal_model_are_those_of_its_text_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("plain", "whole"):
        write_adapter(tmp_path / name, folders["llama"], 1)
    rewrite(
        tmp_path / "whole",
        lambda tensors: {
            name.replace("model.layers", "model.language_model.layers"): each for name, each in tensors.items()
        },
    )
    lm = load(folders["llama"], tmp_path)
    assert torch.equal(mixed_logits(lm, [1]), mixed_logits(lm, [2]))


def test_a_digest_is_that_of_both_files(folders: dict[str, Path], tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_adapter(tmp_path / name, folders["llama"], seed)
    one, same, other = (read_adapter(tmp_path / name).adapter for name in ("one", "same", "other"))
    assert one == Adapter("one", same.digest)
    assert len(one.digest) == 64
    assert other.digest != one.digest
    say(tmp_path / "same", lora_alpha=9)
    assert read_adapter(tmp_path / "same").adapter.digest != one.digest


@pytest.mark.parametrize("cpu_layers", [True, False], ids=["cpu layers", "transformers' layers"])
@pytest.mark.parametrize("architecture", ["llama", "short convolutions"])
def test_another_revision_comes_with_the_adapters_that_are_in_the_folder_by_then(
    folders: dict[str, Path], tmp_path: Path, architecture: str, cpu_layers: bool
) -> None:
    first = folders[architecture]
    second = revised(first, tmp_path / "second")
    attention: dict[str, Any] = {"modules": ["q_proj", "v_proj"]}
    for seed, name in enumerate(("changed", "gone", "stays"), 1):
        write_adapter(tmp_path / "adapters" / name, first, seed, **attention)
    served = load(first, tmp_path / "adapters", cpu_layers=cpu_layers)
    before, model = served.info.adapters, weakref.ref(served.model)
    mixed_logits(served, MIXED)
    shutil.rmtree(tmp_path / "adapters" / "gone")
    shutil.rmtree(tmp_path / "adapters" / "changed")
    write_adapter(tmp_path / "adapters" / "changed", first, 4, **attention)
    write_adapter(tmp_path / "adapters" / "new", first, 5, rank=7, modules=["k_proj"])
    read, again = (load(second, tmp_path / "adapters", cpu_layers=cpu_layers) for _ in range(2))
    Revision("second", read, served).copy_into(served)
    assert [each.name for each in served.info.adapters] == ["changed", "new", "stays"]
    assert served.info == replace(again.info, model=served.info.model)
    assert (served.info.adapters[2] in before, served.info.adapters[0] in before) == (True, False)
    assert torch.equal(mixed_logits(served, MIXED), mixed_logits(again, MIXED))
    gc.collect()
    assert model() is None, "nothing holds what served before"


def revised(folder: Path, into: Path) -> Path:
    """Another revision of a target, all of whose matrices are somewhat others."""
    shutil.copytree(folder, into)
    model = AutoModelForCausalLM.from_pretrained(into)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 2:
                drawn = torch.Generator().manual_seed(number)
                parameter.add_(torch.randn(parameter.shape, generator=drawn), alpha=0.3 * parameter.std().item())
    model.save_pretrained(into)
    return into


def test_a_revision_of_another_type_does_not_take_the_place_of_a_model_with_adapters(
    folders: dict[str, Path], llama_adapters: Path
) -> None:
    served, read = (load(folders["llama"], llama_adapters, dtype=dtype) for dtype in ("float32", "bfloat16"))
    with pytest.raises(Incompatible, match="by what is loaded: its type is bfloat16, expected float32"):
        Revision("second", read, served)


def test_without_kernels_for_a_gpu_no_forward_with_adapters_is_captured(
    folders: dict[str, Path], llama_adapters: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lm = load(folders["llama"], llama_adapters)
    with caplog.at_level(logging.INFO):
        lm.capture_graphs(Buckets(8, 2))
    assert lm.graphs is None
    assert "no forward is captured: what adapters add" in caplog.text
    with pytest.raises(LoadError, match="not compiled: set compile = off"):
        lm.compile_layers("eager")


def without(name: str) -> Change:
    return lambda folder: rewrite(folder, lambda own: {each: tensor for each, tensor in own.items() if each != name})


def with_tensor(name: str, tensor: Tensor) -> Change:
    return lambda folder: rewrite(folder, lambda own: {**own, name: tensor})


def adapting(module: str) -> Change:
    """Have the matrices of one module be those of another, too."""
    return lambda folder: rewrite(
        folder,
        lambda own: (
            own
            | {
                each.replace("model.layers.0.self_attn.q_proj", module): own[each].clone()
                for each in own
                if "0.self_attn.q_proj" in each
            }
        ),
    )


REFUSED: Mapping[str, tuple[Change, str]] = {
    "another kind": (lambda folder: say(folder, peft_type="IA3"), r"peft_type = '\"IA3\"': expected LORA"),
    "DoRA": (lambda folder: say(folder, use_dora=True), "use_dora = 'true', which is not supported: DoRA"),
    "biases": (lambda folder: say(folder, bias="all"), "train it without"),
    "PiSSA": (
        lambda folder: say(folder, init_lora_weights="pissa_niter_4"),
        "path_initial_model_for_weight_conversion",
    ),
    "whole modules": (lambda folder: say(folder, modules_to_save=["lm_head"]), "modules_to_save"),
    "tensors of experts": (lambda folder: say(folder, target_parameters=["experts.w1"]), "no linear layers"),
    "what nobody knows": (lambda folder: say(folder, use_wonders=3), "use_wonders = '3', which is not supported"),
    "too high a rank": (lambda folder: say(folder, r=65), "a rank of '65': expected a number from 1 to 64"),
    "a rank in words": (lambda folder: say(folder, rank_pattern={"x": "8"}), "expected a number from 1 to 64"),
    "another rank": (lambda folder: say(folder, r=5), r"expected \[5, in\] and \[out, 5\]"),
    "an alpha of NaN": (lambda folder: say(folder, lora_alpha=math.nan), "an alpha of 'NaN': expected a number"),
    "a broken pattern": (lambda folder: say(folder, alpha_pattern={"(": 1}), "no regular expression"),
    "no JSON": (
        lambda folder: (folder / "adapter_config.json").write_text("{"),
        "adapter_config.json cannot be read",
    ),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "safetensors cannot be read"),
    "pickled weights": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
        "may run code when it is read",
    ),
    "one matrix": (without(FIRST), "has one of the two matrices of model.layers.0.self_attn.q_proj"),
    "a vector of DoRA": (
        with_tensor("base_model.model.model.layers.0.mlp.lora_magnitude_vector", torch.ones(3)),
        "not supported",
    ),
    "another width": (with_tensor(FIRST, torch.ones(4, 31)), "from 31 to 32: expected 32 to 32"),
    "NaN": (with_tensor(FIRST, torch.full((4, 32), math.nan)), "NaN or infinity in torch.float32"),
    "whole numbers": (with_tensor(FIRST, torch.ones(4, 32, dtype=torch.int32)), "expected floating point"),
    "a layer that is not there": (adapting("model.layers.7.self_attn.q_proj"), "has no module of that name"),
    "the LM head": (adapting("lm_head"), "computes logits: only layers below it"),
    "embeddings": (adapting("model.embed_tokens"), "which is a Embedding: only linear layers"),
}


@pytest.mark.parametrize("what", [*REFUSED])
def test_what_is_not_computed_is_refused_by_name(folders: dict[str, Path], tmp_path: Path, what: str) -> None:
    change, why = REFUSED[what]
    write_adapter(tmp_path / "good", folders["llama"], 1)
    change(write_adapter(tmp_path / "other", folders["llama"], 2))
    with pytest.raises(LoadError, match=f"adapter other: .*{why}"):
        load(folders["llama"], tmp_path)


def test_layers_that_do_not_run_all_tokens_at_once_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    target = folders["short convolutions"]
    write_adapter(tmp_path / "attention" / "a", target, 1, modules=["q_proj", "v_proj"])
    assert len(load(target, tmp_path / "attention").info.adapters) == 1
    write_adapter(tmp_path / "convolutions" / "a", target, 1, modules=["in_proj"])
    with pytest.raises(LoadError, match="only layers can be adapted that are run on all tokens of a forward at once"):
        load(target, tmp_path / "convolutions")


def test_a_layer_that_the_model_does_not_run_is_refused(folders: dict[str, Path], llama_adapters: Path) -> None:
    lm = load(folders["llama"], None)
    unused = nn.Linear(32, 32, bias=False)
    lm.model.add_module("unused", unused)
    weights = read_adapter(llama_adapters / "a")
    pair = LowRank(torch.zeros(1, 32), torch.zeros(32, 1))
    lm.adapters.put(lm.model, type(weights)(weights.adapter, {"unused": pair}))
    with pytest.raises(LoadError, match="adapter a: it adapts unused, which LlamaForCausalLM does not run"):
        probe_adapters(lm)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist or is no folder"),
        (lambda path: path.mkdir(), "has no adapter in it"),
        (lambda path: (path.mkdir(), (path / "adapter_config.json").write_text("{}")), "is itself an adapter"),
    ],
)
def test_a_folder_without_folders_of_adapters_is_refused(
    folders: dict[str, Path], tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / "adapters")
    with pytest.raises(LoadError, match=why):
        load(folders["llama"], tmp_path / "adapters")


def test_an_inflated_target_takes_none(folders: dict[str, Path], llama_adapters: Path) -> None:
    with pytest.raises(LoadError, match="leave out inflate_layers"):
        load(folders["llama"], llama_adapters, inflate_layers=6)


def test_every_projection_of_a_layer_is_adapted(folders: dict[str, Path], llama_adapters: Path) -> None:
    lm = load(folders["llama"], llama_adapters, cpu_layers=False)
    assert {layer.name.rpartition(".")[2] for layer in lm.adapters.layers_of(1)} == {*EVERY}
    assert len(lm.adapters.layers_of(1)) == 3 * len(EVERY)

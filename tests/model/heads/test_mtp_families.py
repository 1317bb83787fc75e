"""MTP layers out of a target's own folder, family by family, against the formula straight from the published tensors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, __version__

from specsplit.errors import LoadError
from specsplit.features import LAST
from specsplit.model import Row, RowPages
from specsplit.model.heads import Head, HeadRunner, load_head
from specsplit.model.heads.layouts import mtp_layout
from specsplit.mtp import num_mtp_layers
from specsplit.mtp.families import FAMILIES, REFUSED, family_of
from specsplit.mtp.family import MtpFamily
from specsplit.values import DrafterKind
from tests.model.heads.mtp_published import TARGETS, MtpTarget
from tests.model.heads.published import HIDDEN, LAYERS, TARGET_FACTS, write
from tests.model.heads.test_heads_match_transformers import Tree
from tests.support.rounding import assert_same_sums

KIND = DrafterKind.MULTI_LAYER_EAGLE
BLOCK = 7
"""Rows and columns of weights that share a scale."""


def known(name: str) -> Any:
    """A target of `TARGETS`, skipped where the installed transformers does not have its kind yet."""
    kind = TARGETS[name].facts["model_type"]
    lacks = pytest.mark.skipif(kind not in CONFIG_MAPPING, reason=f"transformers {__version__} has no {kind}")
    return pytest.param(name, marks=lacks, id=name)


KNOWN = [known(name) for name in TARGETS]


def load(folder: Path, published: MtpTarget, tensors: dict[str, Tensor], form: str = "single") -> Head:
    written = write(folder, published.config_json, tensors, form)
    return load_head(written, written, KIND)


def assert_trees_match(head: Head, published: MtpTarget, tensors: dict[str, Tensor]) -> None:
    """Every node of a tree gives in every step what the formula gives on its path."""
    for step in range(published.steps):
        tree = Tree([-1, -1, 0, 0, 1, 3, 3, 5], head.shape.state_width, seed=step)
        hidden, states = tree.run(HeadRunner(head, step, 32), cuts=[5, 7])
        logits = head.logits(step, hidden)
        for row in range(tree.count):
            path = tree.path(row)
            given = tree.tokens[path], tree.states[path], torch.arange(len(path))
            expected_logits, expected_state = published.run(tensors, step, *given)
            assert_same_sums(logits[row], expected_logits)
            assert_same_sums(states[row], expected_state)


@pytest.mark.parametrize("name", KNOWN)
def test_every_node_of_a_tree_matches_its_path(tmp_path: Path, name: str) -> None:
    """Stored as published, in bfloat16 and in shards."""
    published = TARGETS[name]
    stored = {each: tensor.to(torch.bfloat16) for each, tensor in published.tensors().items()}
    head = load(tmp_path, published, stored, "sharded")
    assert head.shape.num_steps == published.steps
    assert head.shape.need.layers == ((LAYERS,) if published.before_norm else (LAST,))
    tensors = {each: tensor.float() for each, tensor in stored.items()}
    assert_trees_match(head, published, tensors)
    head.use_cpu_layers()
    assert_trees_match(head, published, tensors)


@pytest.mark.parametrize("name", KNOWN)
def test_in_bfloat16_what_chooses_experts_stays_as_exact_as_it_was(tmp_path: Path, name: str) -> None:
    published = TARGETS[name]
    tensors = published.tensors()
    folder = write(tmp_path, published.config_json, tensors)
    head = load_head(folder, folder, KIND, dtype="bfloat16")
    own = head.own_tensors()
    exact = {each for each, tensor in own.items() if tensor.dtype is not torch.bfloat16}
    assert exact == {each for each in own if each.endswith("e_score_correction_bias")}
    for each in exact:
        ((stored, _),) = mtp_layout(*layers_of(published, tensors)).pieces(each, own[each])
        assert torch.equal(own[each], tensors[stored])
    for step in range(published.steps):
        runner = HeadRunner(head, step, 16)
        rows = [Row.chunk([1, 2, 3], RowPages.alone(runner.pool.allocate(3), 3))]
        hidden, _ = runner.forward(rows, torch.ones(3, HIDDEN, dtype=torch.bfloat16))
        assert torch.isfinite(head.logits(step, hidden)).all()


@pytest.mark.parametrize("shape", [(-1, 1), (1,), ()])
def test_weights_of_eight_bits_may_have_a_scale_for_every_row_or_one(tmp_path: Path, shape: tuple[int, ...]) -> None:
    published = TARGETS["glm4_moe"]
    tensors, stored = published.tensors(), dict(published.tensors())
    own = [each for each in published.shapes() if "proj.weight" in each and "eh_proj" not in each]
    for each in own:
        scale = (torch.arange(len(tensors[each])) % 3 + 1.0)[:, None] if shape == (-1, 1) else torch.full(shape, 0.5)
        stored[each], stored[f"{each}_scale"] = (tensors[each] / scale).to(torch.float8_e4m3fn), scale
        tensors[each] = stored[each].float() * scale
    assert_trees_match(load(tmp_path / "right", published, stored), published, tensors)
    stored[f"{own[0]}_scale"] = torch.ones(3)
    with pytest.raises(LoadError, match=r"_scale is \[3\], expected \[\d+, 1\] or \[1\] or \[\]"):
        load(tmp_path / "wrong", published, stored)


def layers_of(published: MtpTarget, tensors: dict[str, Tensor]) -> tuple[MtpFamily, range]:
    family = family_of(published.config_json, tensors)
    assert family is not None
    return family, family.layers(tensors)


@pytest.mark.parametrize("name", ["glm4_moe_lite", "deepseek_v32", "mimo_v2_flash", "longcat_flash"])
def test_weights_of_eight_bits_are_multiplied_by_the_scales_of_their_blocks(tmp_path: Path, name: str) -> None:
    published = TARGETS[name]
    tensors, stored = published.tensors(), dict(published.tensors())
    own = [each for each in published.shapes() if re.search(r"(?<!eh_)(?<!weights_)proj|\.(wq_b|wk)\.", each)]
    assert any(dimension % BLOCK for each in own for dimension in tensors[each].shape)
    for each in own:
        stored[each], stored[f"{each}_scale_inv"], tensors[each] = in_eight_bits(tensors[each])
    facts = {
        **published.config_json,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]},
    }
    folder = write(tmp_path, facts, stored)
    assert_trees_match(load_head(folder, folder, KIND), published, tensors)
    stored |= {own[0]: stored[own[0]].float()}
    with pytest.raises(LoadError, match=r"is torch\.float32 with scales, expected float8_e4m3fn"):
        load_head(write(tmp_path / "twice", facts, stored), folder, KIND)
    stored |= {own[0]: stored[own[0]].to(torch.float8_e4m3fn)}
    del stored[f"{own[0]}_scale_inv"]
    with pytest.raises(LoadError, match=f"{re.escape(own[0])} is quantised .* and lacks its scales"):
        load_head(write(tmp_path / "lacking", facts, stored), folder, KIND)
    for kind in (torch.float8_e5m2, torch.int8):
        other = stored | {own[0]: stored[own[0]].float().to(kind)}
        with pytest.raises(LoadError, match=rf"is {re.escape(str(kind))}, expected float8_e4m3fn with scales, or"):
            load_head(write(tmp_path / str(kind), facts, other), folder, KIND)
    stored[f"{own[0]}_scale_inv"] = torch.ones(1, 1)
    with pytest.raises(LoadError, match=r"_scale_inv is \[1, 1\], expected"):
        load_head(write(tmp_path / "misshapen", facts, stored), folder, KIND)


@pytest.mark.parametrize("name", KNOWN)
def test_no_other_tensors_are_read(tmp_path: Path, name: str) -> None:
    """The file that would hold them is not even there."""
    published = TARGETS[name]
    tensors = published.tensors()
    write(tmp_path, published.config_json, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / "read.safetensors")
    others = tensors.keys() - published.shapes().keys() - {"lm_head.weight", *(n for n in tensors if "embed" in n)}
    others |= {each for each in tensors if ".indexer." in each}
    if "lm_head" in published.ends:
        others |= {"lm_head.weight"}
    if "embeddings" not in published.ends:
        assert len(others) >= 2
    files = {each: "elsewhere.safetensors" if each in others else "read.safetensors" for each in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert num_mtp_layers(tmp_path) == published.steps
    assert load_head(tmp_path, tmp_path, KIND).shape.num_steps == published.steps


@pytest.mark.parametrize(
    ("name", "facts", "why"),
    [
        ("nemotron_h", {"mtp_hybrid_override_pattern": "ME"}, "mixers of the kinds linear_attention, moe .* expected"),
        (
            "mimo_v2_flash",
            {"swa_num_key_value_heads": 1},
            "swa_num_key_value_heads is 1; transformers builds .* with 2",
        ),
        ("mimo_v2_flash", {"add_swa_attention_sink_bias": False}, "add_swa_attention_sink_bias is False"),
        ("step3p5", {"moe_layers_enum": "3,9"}, "MTP layer 1 has an MLP of kind sparse; expected dense"),
        ("exaone_moe", {"mtp_sliding_windows": [4]}, "sets mtp_sliding_windows, which"),
        ("qwen3_5_moe", {"mtp_num_hidden_layers": 2}, "holds 1 MTP layers, its config.json says 2"),
        ("qwen3_5_moe", {"mtp_use_dedicated_embeddings": True}, "embeddings of their own are not supported"),
        ("glm4_moe", {"num_nextn_predict_layers": 2}, "holds 1 MTP layers, its config.json says 2"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(
    tmp_path: Path, name: str, facts: dict[str, object], why: str
) -> None:
    published = TARGETS[name]
    folder = write(tmp_path, {**published.config_json, **facts}, published.tensors())
    with pytest.raises(LoadError, match=why):
        load_head(folder, folder, KIND)


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_layers_with_an_indexer_attend_to_all_tokens_and_say_where_that_is_more(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference's indexer chooses 16 tokens, more than there are. With 2 it gives other logits; the head does not."""
    published = TARGETS[name]
    tensors = published.tensors()
    assert_trees_match(load(tmp_path, published, tensors), published, tensors)
    assert "the first 16 tokens of a text, of 512 that" in caplog.text
    few = replace(published, facts={**published.facts, "index_topk": 2})
    head = load(tmp_path / "few", few, tensors)
    assert_trees_match(head, published, tensors)
    tokens, states = torch.arange(6), torch.ones(6, HIDDEN)
    chosen, _ = few.run(tensors, 0, tokens, states, torch.arange(6))
    every, _ = published.run(tensors, 0, tokens, states, torch.arange(6))
    assert not torch.allclose(chosen, every, rtol=1e-2)
    caplog.clear()
    folder = tmp_path / "few"
    load_head(folder, folder, KIND, max_context=2)
    assert caplog.text == ""


def test_a_tensor_of_an_indexer_that_is_not_known_is_left_over(tmp_path: Path) -> None:
    published = TARGETS["deepseek_v32"]
    more = {f"model.layers.{LAYERS}.self_attn.indexer.compressor.weight": torch.ones(2, 2)}
    with pytest.raises(LoadError, match=r"indexer\.compressor"):
        load(tmp_path, published, {**published.tensors(), **more})


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_a_config_that_transformers_wrote_loads_too(tmp_path: Path, name: str) -> None:
    """It has the kinds of all layers."""
    published = TARGETS[name]
    facts = {key: value for key, value in published.config_json.items() if key != "model_type"}
    written = CONFIG_MAPPING[name].from_dict(facts).to_dict()
    assert set(written["layer_types"]) <= {"indexed_attention", "deepseek_sparse_attention"}  # the latter by 5.17
    same = replace(published, facts={**published.facts, **written})
    tensors = published.tensors()
    assert_trees_match(load(tmp_path, same, tensors), published, tensors)


def test_layers_that_names_say_cannot_be_read_are_not_found(tmp_path: Path) -> None:
    published = TARGETS["step3p7"]
    tensors = published.tensors()
    assert num_mtp_layers(write(tmp_path / "whole", published.config_json, tensors)) == published.steps
    own = next(name for name in sorted(published.shapes()) if name.endswith("q_proj.weight"))
    targets = next(name for name in sorted(tensors.keys() - published.shapes().keys()) if tensors[name].ndim == 2)
    for packed, found in ((own, False), (targets, True)):
        stored = {
            f"{name.removesuffix('weight')}qweight" if name == packed else name: tensors[name] for name in tensors
        }
        assert bool(num_mtp_layers(write(tmp_path / packed, published.config_json, stored))) is found
    lacking = {name: tensors[name] for name in tensors if ".9." not in name}
    assert not num_mtp_layers(write(tmp_path / "lacking", published.config_json, lacking))


def test_a_shard_that_is_not_whole_is_named(tmp_path: Path) -> None:
    published = TARGETS["glm4_moe"]
    folder = write(tmp_path, published.config_json, published.tensors())
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(LoadError, match=r"model\.safetensors cannot be read"):
        num_mtp_layers(folder)


@pytest.mark.parametrize("name", KNOWN)
def test_a_tensor_beside_the_known_ones_is_left_over(tmp_path: Path, name: str) -> None:
    published = TARGETS[name]
    family, layers = layers_of(published, published.tensors())
    stray = (
        f"model.layers.{layers.start}.gate.weight"
        if family.behind_target
        else f"{family.proj.partition('mtp')[0]}mtp.gate.weight"
    )
    with pytest.raises(LoadError, match=rf"{re.escape(stray)} \[2\] is left over, expected no such tensor"):
        load(tmp_path, published, {**published.tensors(), stray: torch.ones(2)})


@pytest.mark.parametrize("name", [name for name in KNOWN if TARGETS[name.id].steps == 1])
def test_one_layer_runs_on_its_own_states_too(tmp_path: Path, name: str) -> None:
    """As SGLang runs it, behind its last norm; on given states it says what it says as `multi_layer_eagle`."""
    published = TARGETS[name]
    tensors = published.tensors()
    folder = write(tmp_path, published.config_json, tensors)
    head = load_head(folder, folder, DrafterKind.EAGLE)
    assert head.shape.recurrent
    tree = Tree([-1, -1, 0, 0, 1, 3, 3, 5], head.shape.state_width, seed=1)
    hidden, states = tree.run(HeadRunner(head, 0, 32), cuts=[5, 7])
    logits = head.logits(0, hidden)
    assert torch.equal(hidden, states)
    for row in range(tree.count):
        path = tree.path(row)
        expected, state = published.run(tensors, 0, tree.tokens[path], tree.states[path], torch.arange(len(path)))
        assert_same_sums(logits[row], expected)
        if published.chains_norm:
            assert_same_sums(states[row], state)


def test_settings_of_mtp_layers_that_are_not_read_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    published = TARGETS["step3p7"]
    more = {"mtp_gate_rank": 4, "mtp_loss_scaling_factor": 0.1, "mtp_use_other_norm": False, "num_nextn_heads": None}
    facts = {**published.facts, "text_config": {**published.facts["text_config"], **more}}
    load(tmp_path / "more", replace(published, facts=facts), published.tensors())
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["mtp_gate_rank = 4"]


def test_embeddings_of_its_own_that_are_missing_are_named(tmp_path: Path) -> None:
    published = TARGETS["longcat_flash"]
    tensors = published.tensors()
    del tensors["model.mtp.embed_tokens.weight"]
    with pytest.raises(LoadError, match=r"lacks model\.mtp\.embed_tokens\.weight, the embeddings of its MTP"):
        load(tmp_path, published, tensors)


PUBLISHED = {
    "mimo_v2": ("model.mtp.layers.0.enorm.weight", "model.mtp.layers.0.self_attn.qkv_proj.weight"),
    "bailing_moe": ("model.layers.8.enorm.weight", "model.layers.8.attention.query_key_value.weight"),
    "bailing_moe_v2": ("model.layers.8.enorm.weight", "model.layers.8.attention.query_key_value.weight"),
    "pangu_ultra_moe": ("model.layers.8.enorm.weight", "model.layers.8.self_attn.q_a_proj.weight"),
}
"""Some names of the tensors of MTP layers that cannot be run."""


@pytest.mark.parametrize("kind", REFUSED)
def test_families_that_cannot_be_run_are_refused_with_what_is_missing(tmp_path: Path, kind: str) -> None:
    folder = write(
        tmp_path, {**TARGET_FACTS, "model_type": kind}, {name: torch.ones(HIDDEN) for name in PUBLISHED[kind]}
    )
    assert not num_mtp_layers(folder)
    said = f"the MTP layers of {kind} are not supported: transformers has no layers of this kind"
    for drafter in (KIND, DrafterKind.EAGLE):
        with pytest.raises(LoadError, match=said):
            load_head(folder, folder, drafter)


def test_the_page_names_every_kind() -> None:
    page = Path("docs/mtp.md").read_text()
    kinds = {kind for family in FAMILIES for kind in family.model_types} | set(REFUSED)
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in page] == []


def in_eight_bits(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of eight bits, the scales of their blocks, and what they stand for."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) + 0.5
    full = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: weight.shape[0], : weight.shape[1]]
    small = (weight / full).to(torch.float8_e4m3fn)
    return small, scales, small.float() * full

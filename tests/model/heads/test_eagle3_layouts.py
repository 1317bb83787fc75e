"""EAGLE-3 in every layout that is published: packed trees give what the formula gives on each path, and what is not known is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.features import FeatureNeed
from specsplit.model import Row, RowPages
from specsplit.model.heads import Head, HeadRunner, load_head, projection_of
from specsplit.model.heads.known_keys import HARMLESS
from specsplit.values import DrafterKind
from tests.model.heads.eagle3_formula import Formula
from tests.model.heads.eagle3_layouts import LAYOUTS3, MODELOPT, WIDE, Layout3, features_for, layout3
from tests.model.heads.published import (
    DRAFT_VOCAB,
    HIDDEN,
    TARGET_FACTS,
    VOCAB,
    eagle,
    random_tensor,
    write,
    write_target,
)
from tests.support.rounding import assert_same_sums

PREFIX = 5
PARENTS = [-1, 0, 0, 2, 1, 3]
"""Of nodes below the last of PREFIX tokens."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of another width, whose embeddings no head can use."""
    facts = {**TARGET_FACTS, "hidden_size": WIDE, "num_attention_heads": 6}
    return write(tmp_path_factory.mktemp("wide"), facts, {"model.embed_tokens.weight": torch.zeros(VOCAB, WIDE)})


def load(folder: Path, layout: Layout3, target: Path, wide: Path, **facts: Any) -> Head:
    written = write(folder / "head", {**layout.facts, **facts}, layout.tensors())
    return load_head(written, target if layout.target_hidden == HIDDEN else wide, DrafterKind.EAGLE3)


def run_tree(head: Head, tokens: list[int], features: Tensor) -> Tensor:
    """Logits of all rows: PREFIX committed tokens at once, then nodes one by one, each from what its parent left."""
    parents = [*range(-1, PREFIX - 1), *(PREFIX + parent if parent >= 0 else PREFIX - 1 for parent in PARENTS)]
    runner = HeadRunner(head, 0, 32)
    slots = runner.pool.allocate(len(tokens))[::-1].copy()
    mask = Row.tree(np.array(tokens), parents, RowPages.alone(slots, len(tokens))).tail_mask
    states, made = head.fuse(features), list[Tensor]()
    for start, stop in [(0, PREFIX), *((row, row + 1) for row in range(PREFIX, len(tokens)))]:
        row = Row(
            tokens=np.array(tokens[start:stop]),
            positions=mask[start:stop].sum(axis=1) - 1,
            pages=RowPages.alone(slots[:stop], stop),
            tail_mask=mask[start:stop, :stop],
        )
        known = states[start:stop] if start < PREFIX else states[parents[start]][None]
        hidden, left = runner.forward([row], known)
        states = torch.cat([states[:start] if start >= PREFIX else states[:0], left])
        made.append(head.logits(0, hidden))
    return torch.cat(made)


@pytest.mark.parametrize("name", LAYOUTS3)
def test_every_node_of_a_tree_gets_what_the_formula_gives_on_its_path(
    tmp_path: Path, target: Path, wide: Path, name: str
) -> None:
    layout = LAYOUTS3[name]
    tensors, head = layout.tensors(), load(tmp_path, layout, target, wide)
    assert head.shape.need == FeatureNeed(layout.features, layout.target_hidden)
    assert len(head.geometry.layers) == layout.facts["num_hidden_layers"]
    embeddings = tensors.get(
        "embed_tokens.weight", load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    )
    formula = Formula(layout.facts, tensors, embeddings)
    tokens = [7, 3, 90, 41, 12, *range(50, 50 + len(PARENTS))]
    features = features_for(layout, PREFIX)
    logits = run_tree(head, tokens, features)
    assert head.target_ids is not None
    for row in range(len(tokens)):
        path = [row]
        while path[0] >= PREFIX:
            above = PARENTS[path[0] - PREFIX]
            path.insert(0, PREFIX + above if above >= 0 else PREFIX - 1)
        path = [*range(path[0]), *path]
        expected = formula.logits([tokens[each] for each in path], features[: min(len(path), PREFIX)])[-1]
        assert_same_sums(logits[row, head.target_ids], expected)


@pytest.mark.parametrize("name", LAYOUTS3)
def test_modules_for_a_cpu_say_the_same(tmp_path: Path, target: Path, wide: Path, name: str) -> None:
    head = load(tmp_path, LAYOUTS3[name], target, wide)
    tokens, features = [*range(PREFIX + len(PARENTS))], features_for(LAYOUTS3[name], PREFIX)
    before = run_tree(head, tokens, features)
    head.use_cpu_layers()
    first = slice(PREFIX + 1)  # the nodes below read states of the head's own, whose errors add up
    assert_same_sums(run_tree(head, tokens, features)[first], before[first])


@pytest.mark.parametrize("name", LAYOUTS3)
def test_every_missing_tensor_is_named(tmp_path: Path, target: Path, wide: Path, name: str) -> None:
    layout = LAYOUTS3[name]
    for missing in sorted(set(layout.shapes) - {"fc.bias", "embed_tokens.weight"}):
        tensors = layout.tensors()
        del tensors[missing]
        folder = write(tmp_path / "head", layout.facts, tensors)
        with pytest.raises(LoadError, match=re.escape(f"{missing} is missing, expected")):
            load_head(folder, target if layout.target_hidden == HIDDEN else wide, DrafterKind.EAGLE3)


def refused(folder: Path, layout: Layout3, target: Path, facts: dict[str, Any], why: str) -> None:
    written = write(folder / "head", {**layout.facts, **facts}, layout.tensors())
    with pytest.raises(LoadError, match=why):
        load_head(written, target, DrafterKind.EAGLE3)


class TestSettings:
    def test_a_norm_without_its_tensors_is_refused(self, tmp_path: Path, target: Path) -> None:
        for flag, missing in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
            refused(tmp_path, layout3({}), target, {flag: True}, rf"{re.escape(missing)} is missing")

    def test_norms_that_are_not_asked_for_are_left_over(self, tmp_path: Path, target: Path) -> None:
        refused(tmp_path, LAYOUTS3["norms"], target, {"fc_norm": False}, r"fc_norm\.0\.weight \[32\] is left over")

    def test_both_norms_of_features_are_refused(self, tmp_path: Path, target: Path) -> None:
        both = {"norm_before_fc": True, "fc_norm": True}
        refused(tmp_path, layout3({}), target, both, "sets norm_before_fc and fc_norm")

    def test_a_file_that_contradicts_itself_is_refused(self, tmp_path: Path, target: Path) -> None:
        facts = {"norm_output": True, "eagle_config": {"norm_output": False}}
        refused(tmp_path, layout3({}), target, facts, "norm_output both True and False")

    def test_hidden_states_that_nobody_names_are_refused(self, tmp_path: Path, target: Path) -> None:
        refused(tmp_path, layout3({}), target, {"num_aux_hidden_states": 4}, "4 hidden states .* does not name them")
        facts = {"num_aux_hidden_states": 4, "eagle_aux_hidden_state_layer_ids": [1, 2]}
        refused(tmp_path, layout3({}), target, facts, "4 hidden states .* names 2")

    def test_p_eagle_without_its_mask_is_refused(self, tmp_path: Path, target: Path) -> None:
        refused(tmp_path, LAYOUTS3["p-eagle"], target, {"pard_token": None}, "has none of mask_token_id, pard_token")
        refused(tmp_path, LAYOUTS3["p-eagle"], target, {"pard_token": VOCAB}, "mask is token 97 of 97")

    def test_a_mask_may_lie_flat(self, tmp_path: Path, target: Path) -> None:
        tensors = LAYOUTS3["p-eagle"].tensors()
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, -1)
        head = load_head(write(tmp_path, LAYOUTS3["p-eagle"].facts, tensors), target, DrafterKind.EAGLE3)
        states = head.fuse(features_for(LAYOUTS3["p-eagle"], 2))
        assert states.shape == (2, HIDDEN + 1) == (2, head.shape.state_width)

    def test_norms_of_layers_behind_the_first_that_vllm_makes_and_does_not_use_are_left_alone(
        self, tmp_path: Path, target: Path
    ) -> None:
        layout = LAYOUTS3["windows"]
        extra = {"layers.1.hidden_norm.weight": torch.zeros(HIDDEN)}
        load_head(write(tmp_path, layout.facts, {**layout.tensors(), **extra}), target, DrafterKind.EAGLE3)

    def test_a_feature_that_is_normed_has_no_projection(self, tmp_path: Path) -> None:
        layout = LAYOUTS3["norms"]
        with pytest.raises(LoadError, match=r"norms features before fc\.weight"):
            projection_of(write(tmp_path, layout.facts, layout.tensors()))

    def test_speculators_heads_norm_before_the_residual_unless_they_say_otherwise(
        self, tmp_path: Path, target: Path
    ) -> None:
        """vLLM's reading of files that do not say: eagle3 does, peagle does not."""
        layout = layout3({})
        files = {
            "eagle3": layout.tensors(),
            "peagle": {**layout.tensors(), "mask_hidden": random_tensor("mask_hidden", (1, 1, 3 * HIDDEN), 1)},
        }
        for kind, tensors in files.items():
            facts = {"speculators_model_type": kind, "mask_token_id": 3}
            head: Any = load_head(write(tmp_path, {**layout.facts, **facts}, tensors), target, DrafterKind.EAGLE3)
            assert head.variant.norm_before_residual is (kind == "eagle3")


class TestTarget:
    """What a head has itself it does not share with its target, whatever that does with its own."""

    OWN: ClassVar = layout3({}, {"embed_tokens.weight": (VOCAB, HIDDEN)})

    def test_a_target_that_scales_is_no_matter_to_a_head_with_both_ends(self, tmp_path: Path) -> None:
        ends = {name: torch.zeros(VOCAB, HIDDEN) for name in ("model.embed_tokens.weight", "lm_head.weight")}
        facts = {**TARGET_FACTS, "model_type": "granite", "embedding_multiplier": 12.0, "logits_scaling": 8.0}
        scaled = write(tmp_path / "scaled", facts, ends)
        head = load_head(write(tmp_path / "head", self.OWN.facts, self.OWN.tensors()), scaled, DrafterKind.EAGLE3)
        assert torch.equal(head.target.embeddings, self.OWN.tensors()["embed_tokens.weight"])
        assert head.target.lm_head is None
        shared = layout3({})
        with pytest.raises(LoadError, match=r"granite target: embedding_multiplier$"):
            load_head(write(tmp_path / "shared", shared.facts, shared.tensors()), scaled, DrafterKind.EAGLE3)

    def test_a_target_whose_embeddings_are_quantised_is_none_either(self, tmp_path: Path) -> None:
        ends = {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN, dtype=torch.int8)}
        quantised = write(tmp_path / "target", TARGET_FACTS, ends)
        load_head(write(tmp_path / "head", self.OWN.facts, self.OWN.tensors()), quantised, DrafterKind.EAGLE3)


class TestUnknown:
    @pytest.mark.parametrize(
        ("facts", "named"),
        [
            ({"residual_scale": 0.5}, "residual_scale = 0.5"),
            ({"use_gate": True}, "use_gate = True"),
            ({"sliding_window": 16}, "sliding_window = 16"),
            ({"layer_types": ["sliding_attention"]}, r"layer_types = \['sliding_attention'\]"),
            ({"is_causal": False}, "is_causal = False"),
            ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5"),
            ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
            ({"eagle_config": {**MODELOPT, "use_last_layernorm": False}}, r"eagle_config\.use_last_layernorm = False"),
            ({"eagle_config": {**MODELOPT, "use_aux_hidden_state": False}}, r"eagle_config\.use_aux_hidden_state = F"),
            ({"eagle_config": {**MODELOPT, "parallel_draft_step": 4}}, r"eagle_config\.parallel_draft_step = 4"),
            ({"eagle_config": {**MODELOPT, "ffn_gate": 2}}, r"eagle_config\.ffn_gate = 2"),
        ],
    )
    def test_a_setting_that_may_change_numbers_is_refused_by_name(
        self, tmp_path: Path, target: Path, facts: dict[str, Any], named: str
    ) -> None:
        refused(tmp_path, layout3({}, first="layers.0"), target, facts, named)

    def test_one_of_the_layers_is_refused_by_name(self, tmp_path: Path, target: Path) -> None:
        layers = {**layout3({}).facts, "muted": 1}
        facts = {"speculators_model_type": "eagle3", "transformer_layer_config": layers}
        refused(tmp_path, layout3({}, first="layers.0"), target, facts, r"transformer_layer_config\.muted = 1")

    def test_all_are_named_at_once(self, tmp_path: Path, target: Path) -> None:
        refused(tmp_path, layout3({}), target, {"a": 1, "b": "x"}, "a = 1, b = 'x'")

    def test_what_changes_no_number_and_what_is_not_set_are_passed_over(self, tmp_path: Path, target: Path) -> None:
        layout = layout3({})
        plain = load_head(write(tmp_path / "plain", layout.facts, layout.tensors()), target, DrafterKind.EAGLE3)
        typed = {
            "auto_map": {"": "x.Y"}, "id2label": {"0": "a"}, "torch_dtype": "bfloat16", "attn_implementation": "eager",
            "_attn_implementation": "eager", "_attn_implementation_internal": "eager",
            "transformers_version": "5.0.0", "label2id": {"a": 0}, "problem_type": "regression", "output_hidden_states": True,
            "return_dict": True,
        }  # fmt: skip
        harmless = {
            **dict.fromkeys(HARMLESS, 1), **typed, "initializer_range": 0.5, "tie_word_embeddings": True, "use_cache": False,
            "layer_types": ["full_attention"], "use_sliding_window": False, "sliding_window": None, "is_causal": True,
            "topk_method": "greedy", "new_and_off": False, "new_and_empty": None,
        }  # fmt: skip
        head = load_head(
            write(tmp_path / "head", {**layout.facts, **harmless}, layout.tensors()), target, DrafterKind.EAGLE3
        )
        features, tokens = features_for(layout, PREFIX), [*range(PREFIX + len(PARENTS))]
        assert torch.equal(run_tree(head, tokens, features), run_tree(plain, tokens, features))

    def test_what_says_false_and_is_not_known_is_told(
        self, tmp_path: Path, target: Path, wide: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        facts = {
            "use_residual": False,
            "use_sliding_window": False,
            "eagle_config": {"use_gate": False, "use_mtp_layernorm": False},
        }
        load(tmp_path, layout3({}), target, wide, **facts)
        (record,) = caplog.records
        assert record.getMessage().endswith("which count as not set: use_residual, eagle_config.use_gate")

    @pytest.mark.parametrize("says", [{"layer_types": ["full_attention"]}, {"use_sliding_window": False}, {}])
    def test_the_size_of_a_window_that_no_layer_has_is_passed_over(
        self, tmp_path: Path, target: Path, says: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """speculators' trainer writes one beside layers that are not said to have windows."""
        layout = layout3({}, first="layers.0")
        layers = {**layout.facts, "sliding_window": 3, **says}
        facts = layers if says else {"speculators_model_type": "eagle3", "transformer_layer_config": layers}
        named = {"draft_vocab_size": DRAFT_VOCAB, "norm_before_residual": False}
        plain, head = (
            load_head(write(tmp_path / folder, each, layout.tensors()), target, DrafterKind.EAGLE3)
            for folder, each in (("plain", layout.facts), ("head", {**facts, **named}))
        )
        features, tokens = features_for(layout, PREFIX), [*range(PREFIX + len(PARENTS))]
        assert torch.equal(run_tree(head, tokens, features), run_tree(plain, tokens, features))
        assert not caplog.records

    def test_eagle_heads_are_held_to_it_too(self, tmp_path: Path, target: Path) -> None:
        published = eagle()
        folder = write(tmp_path, {**published.facts, "fancy_scale": 2}, published.tensors())
        with pytest.raises(LoadError, match="fancy_scale = 2"):
            load_head(folder, target, DrafterKind.EAGLE)


class TestPositions:
    def test_a_head_drafts_for_no_longer_a_text_than_it_was_made_for_and_says_so(
        self, tmp_path: Path, target: Path, wide: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        head = load(tmp_path / "short", layout3({}), target, wide, max_position_embeddings=64)
        assert head.shape.max_context == head.shape.info.max_context == 64
        (record,) = caplog.records
        assert "made for texts of 64 tokens" in record.message and "512" in record.message
        caplog.clear()
        assert load(tmp_path / "long", layout3({}), target, wide, max_position_embeddings=4096).shape.max_context == 512
        assert not caplog.records

    def test_a_head_that_does_not_say_how_long_drafts_for_as_long_as_its_target(
        self, tmp_path: Path, target: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        longer = shutil.copytree(target, tmp_path / "target")
        facts = json.loads((longer / "config.json").read_text()) | {"max_position_embeddings": 4096}
        (longer / "config.json").write_text(json.dumps(facts))
        layout = layout3({})
        says = {key: said for key, said in layout.facts.items() if key != "max_position_embeddings"}
        head = load_head(write(tmp_path / "head", says, layout.tensors()), longer, DrafterKind.EAGLE3)
        assert head.shape.max_context == 4096, "not the 2,048 that transformers takes of such a layer"
        assert not caplog.records

    def test_a_shorter_served_context_needs_no_word(
        self, tmp_path: Path, target: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        layout = layout3({"max_position_embeddings": 64})
        folder = write(tmp_path, layout.facts, layout.tensors())
        assert load_head(folder, target, DrafterKind.EAGLE3, max_context=48).shape.max_context == 48
        assert not caplog.records

"""Folders as people publish them are loaded without conversion; a tensor that does not fit is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.features import LAST, FeatureNeed
from specsplit.model.heads import Eagle3Head, Head, load_head
from specsplit.model.pages.geometry import Layer, Span
from specsplit.values import DrafterKind, Vocabulary
from tests.model.heads.conftest import Loaded
from tests.model.heads.published import (
    DRAFT_VOCAB,
    EVERYBODY,
    HEAD_FACTS,
    HIDDEN,
    TARGET_FACTS,
    VOCAB,
    Published,
    deepseek,
    drafted_ids,
    eagle,
    eagle3,
    mimo,
    speculators,
    write,
    write_target,
)
from tests.support.rounding import assert_same_sums

Load = Callable[..., Loaded]


@pytest.mark.parametrize("form", ["single", "sharded", "bin"])
@pytest.mark.parametrize("name", EVERYBODY)
def test_every_layout_loads_in_every_form(load: Load, name: str, form: str) -> None:
    loaded = load(name, form)
    shape, published = loaded.head.shape, loaded.published
    assert shape.kind is published.kind
    assert shape.need == FeatureNeed(published.features, HIDDEN)
    assert shape.state_width == HIDDEN
    assert shape.num_steps == published.facts.get("num_nextn_predict_layers", 1)
    assert shape.recurrent is (published.kind is not DrafterKind.MULTI_LAYER_EAGLE)
    assert shape.vocabulary == Vocabulary(VOCAB)
    assert shape.max_context == 512
    latent = name.startswith("deepseek")
    assert loaded.head.geometry.layers == (Layer(4, 4, 12, 6) if latent else Layer(4, 2, 8, 8),)
    assert numbers(loaded.head) == pytest.approx(numbers(load(name).head))


@pytest.mark.parametrize("name", EVERYBODY)
def test_every_missing_tensor_is_named_with_its_shape(tmp_path: Path, target: Path, name: str) -> None:
    published = EVERYBODY[name]
    own = [key for key in published.shapes if needed(published, key)]
    for missing in own[:: max(1, len(own) // 4)]:
        tensors = published.tensors()
        del tensors[missing]
        says = f"{missing} is missing, expected {list(published.shapes[missing])}"
        refused(tmp_path, published, tensors, target, re.escape(says))


@pytest.mark.parametrize("name", EVERYBODY)
def test_every_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, target: Path, name: str) -> None:
    published = EVERYBODY[name]
    own = [key for key in published.shapes if needed(published, key)]
    for wrong in own[:: max(1, len(own) // 4)]:
        rows, *rest = published.shapes[wrong]
        tensors = {**published.tensors(), wrong: torch.zeros(rows + 1, *rest)}
        says = f"{wrong} is {[rows + 1, *rest]}, expected {[rows, *rest]}"
        refused(tmp_path, published, tensors, target, re.escape(says))


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("eagle", "layers.1.mlp.up_proj.weight"),
        ("eagle3", "midlayer.self_attn.q_norm.weight"),
        ("mimo", "model.mtp_layers.1.self_attn.o_proj.bias"),
        ("deepseek", "model.layers.8.mlp.experts.4.up_proj.weight"),
    ],
)
def test_a_tensor_left_over_is_named(tmp_path: Path, target: Path, name: str, extra: str) -> None:
    tensors = {**EVERYBODY[name].tensors(), extra: torch.zeros(3, 5)}
    refused(
        tmp_path, EVERYBODY[name], tensors, target, re.escape(f"{extra} [3, 5] is left over, expected no such tensor")
    )


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, target: Path) -> None:
    tensors = {**eagle3().tensors(), "norm.weight": torch.zeros(4), "extra": torch.zeros(1)}
    del tensors["fc.weight"]
    refused(
        tmp_path, eagle3(), tensors, target, r"fc\.weight is missing.*norm\.weight is \[4\].*extra \[1\] is left over"
    )


def test_what_is_no_business_of_the_head_is_left_alone(tmp_path: Path, target: Path) -> None:
    extra = {"lm_head.weight": torch.zeros(2, 2), "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    load_one(tmp_path, eagle(), {**eagle().tensors(), **extra}, target)


def test_an_architecture_without_those_biases_says_so(tmp_path: Path, target: Path) -> None:
    """EAGLE's authors say qkv_bias where a head's attention has biases; without it they are left over."""
    published = replace(eagle(qkv_bias=True), facts=eagle().facts)
    refused(tmp_path, published, published.tensors(), target, r"layers\.0\.self_attn\.q_proj\.bias \[32\] is left over")


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mimo"])
@pytest.mark.parametrize(
    "kind", ["bert", "bloom", "falcon_mamba", "gptj", "gpt_neo", "mamba", "nemotron", "opt", "xlnet"]
)
def test_a_head_of_layers_that_cannot_be_served_is_refused(tmp_path: Path, target: Path, name: str, kind: str) -> None:
    """Whatever transformers, or we, raise over it: the sentence names the folder or the architecture."""
    published = EVERYBODY[name]
    folder = write(tmp_path, {**published.facts, "model_type": kind}, published.tensors())
    with pytest.raises(LoadError) as error:
        load_head(folder, target, published.kind)
    assert str(folder) in str(error.value) or kind in str(error.value)


class TestVocabulary:
    def test_a_reduced_vocabulary_maps_to_the_target(self, load: Load) -> None:
        head = load("eagle3").head
        assert isinstance(head, Eagle3Head)
        assert head.target_ids is not None and torch.equal(head.target_ids, drafted_ids())
        logits = head.logits(0, torch.randn(2, HIDDEN))
        assert torch.isfinite(logits).nonzero()[:DRAFT_VOCAB, 1].tolist() == drafted_ids().tolist()

    def test_tables_that_disagree_are_refused(self, tmp_path: Path, target: Path) -> None:
        tensors = eagle3().tensors()
        tensors["t2d"] = tensors["t2d"].roll(1)
        refused(tmp_path, eagle3(), tensors, target, "t2d and d2t name other tokens")

    def test_a_table_that_leaves_the_target_is_refused(self, tmp_path: Path, target: Path) -> None:
        for d2t in (torch.full((DRAFT_VOCAB,), VOCAB), -torch.arange(DRAFT_VOCAB)):
            tensors = {**eagle3().tensors(), "d2t": d2t}
            refused(tmp_path, eagle3(), tensors, target, "d2t does not map each of 40 draft tokens to another of 97")

    def test_d2t_alone_is_enough(self, tmp_path: Path, target: Path) -> None:
        tensors = eagle3().tensors()
        del tensors["t2d"]
        load_one(tmp_path, eagle3(), tensors, target)

    def test_a_head_of_the_whole_vocabulary_has_no_tables(self, tmp_path: Path, target: Path) -> None:
        tensors = {name: tensor for name, tensor in eagle3().tensors().items() if name not in ("d2t", "t2d")}
        whole = replace(eagle3(), facts={**HEAD_FACTS, "draft_vocab_size": None})
        tensors["lm_head.weight"] = torch.randn(VOCAB, HIDDEN)
        head = load_one(tmp_path, whole, tensors, target)
        assert head.target_ids is None and torch.isfinite(head.logits(0, torch.randn(2, HIDDEN))).all()
        del tensors["lm_head.weight"]  # then it is the target's
        for said in (None, VOCAB):
            stated = replace(eagle3(), facts={**HEAD_FACTS, "draft_vocab_size": said})
            lent = load_one(tmp_path, stated, tensors, target)
            normed = torch.randn(HIDDEN)
            expected = load_file(target / "model.safetensors")["lm_head.weight"] @ norm_of(lent)(normed)
            assert_same_sums(lent.logits(0, normed), expected)

    def test_few_tokens_need_an_lm_head_and_a_table(self, tmp_path: Path, target: Path) -> None:
        for lacking in ({"lm_head.weight"}, {"d2t", "t2d", "lm_head.weight"}):
            tensors = {name: tensor for name, tensor in eagle3().tensors().items() if name not in lacking}
            refused(tmp_path, eagle3(), tensors, target, r"lm_head\.weight is missing, expected \[40, 32\]")

    def test_a_head_for_another_vocabulary_is_refused(self, tmp_path: Path, target: Path) -> None:
        other = replace(eagle(), facts={**HEAD_FACTS, "vocab_size": 96})
        refused(tmp_path, other, other.tensors(), target, "it is for a vocabulary of 96 tokens, the target has 97")


class TestTarget:
    def test_tied_embeddings_are_the_lm_head(self, tmp_path: Path) -> None:
        tied = write_target(tmp_path / "target", tied=True)
        head = load_one(tmp_path, eagle(), eagle().tensors(), tied)
        assert head.target.lm_head is not None and head.target.lm_head.weight is head.target.embeddings

    def test_only_the_ends_are_read(self, tmp_path: Path) -> None:
        """The shards that hold neither end need not even be there."""
        folder = write_target(tmp_path / "target")
        weights = folder / "model.safetensors"
        ends = dict.fromkeys(load_file(weights), weights.rename(folder / "ends.safetensors").name)
        index = {"weight_map": {**ends, "model.layers.0.mlp.up_proj.weight": "elsewhere.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        load_one(tmp_path, eagle(), eagle().tensors(), folder)

    @pytest.mark.parametrize("name", ["mimo", "deepseek"])
    def test_of_a_target_with_mtp_layers_those_and_the_ends_are_read_alone(self, tmp_path: Path, name: str) -> None:
        published = EVERYBODY[name]
        folder = write(tmp_path, published.facts, published.tensors())
        weights = folder / "model.safetensors"
        read = weights.rename(folder / "read.safetensors").name
        others = {"model.norm.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.7.mlp.up_proj.weight"}
        files = {each: "elsewhere.safetensors" if each in others else read for each in published.tensors()}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        assert "elsewhere.safetensors" in files.values()
        assert load_head(folder, folder, published.kind).shape.num_steps == 2

    def test_a_head_with_embeddings_of_its_own_reads_those(self, load: Load) -> None:
        loaded = load("eagle3, speculators")
        assert torch.equal(loaded.head.target.embeddings, loaded.tensors["embed_tokens.weight"])

    def test_a_head_narrower_than_its_target_has_embeddings_of_its_own(self, tmp_path: Path) -> None:
        wide = write(
            tmp_path / "wide",
            {**TARGET_FACTS, "hidden_size": 2 * HIDDEN},
            {"model.embed_tokens.weight": torch.zeros(VOCAB, 2 * HIDDEN)},
        )
        narrow = replace(eagle3(), facts={**eagle3().facts, "target_hidden_size": 2 * HIDDEN})
        tensors = {**eagle3().tensors(), "fc.weight": torch.randn(HIDDEN, 6 * HIDDEN)}
        refused(tmp_path, narrow, tensors, wide, "expected embeddings of its own")
        tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN)
        head = load_one(tmp_path, narrow, tensors, wide)
        assert head.shape.need == FeatureNeed((2, 4, 5), 2 * HIDDEN)
        assert head.shape.state_width == HIDDEN

    def test_a_head_of_another_width_is_refused(self, tmp_path: Path, target: Path) -> None:
        other = replace(eagle(), facts={**HEAD_FACTS, "hidden_size": 48})
        refused(tmp_path, other, other.tensors(), target, "hidden states of width 48, the target's have 32")

    def test_a_target_without_its_ends_is_refused(self, tmp_path: Path) -> None:
        bare = write(tmp_path / "bare", TARGET_FACTS, {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)})
        refused(tmp_path, eagle(), eagle().tensors(), bare, r"bare lacks lm_head\.weight")
        ends = {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN), "lm_head.weight": torch.zeros(VOCAB, 3)}
        write(tmp_path / "bare", TARGET_FACTS, ends)
        refused(tmp_path, eagle(), eagle().tensors(), bare, r"lm_head\.weight is \[97, 3\], expected \[97, 32\]")

    def test_a_target_that_scales_its_logits_is_refused(self, tmp_path: Path) -> None:
        scaled = write(
            tmp_path / "scaled",
            {**TARGET_FACTS, "model_type": "granite", "logits_scaling": 8.0},
            {"model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN), "lm_head.weight": torch.zeros(VOCAB, HIDDEN)},
        )
        refused(tmp_path, eagle(), eagle().tensors(), scaled, "granite target: logits_scaling")


class TestLayers:
    @pytest.mark.parametrize(
        ("facts", "layers"),
        [
            ({}, (2, 4, 5)),
            ({"eagle_aux_hidden_state_layer_ids": [1, 4, 8]}, (1, 4, 8)),
            ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}}, (2, 5, 8)),
        ],
    )
    def test_ids_are_counted_as_their_authors_count(
        self, tmp_path: Path, target: Path, facts: dict[str, Any], layers: tuple[int, ...]
    ) -> None:
        published = replace(eagle3(), facts={**eagle3().facts, **facts})
        assert load_one(tmp_path, published, published.tensors(), target).shape.need.layers == layers

    @pytest.mark.parametrize("ids", [[1, 1, 2], [-1, 2, 3], [1, 2, 9]])
    def test_ids_that_name_no_three_layers_are_refused(self, tmp_path: Path, target: Path, ids: list[int]) -> None:
        published = replace(eagle3(), facts={**eagle3().facts, "eagle_aux_hidden_state_layer_ids": ids})
        refused(
            tmp_path, published, published.tensors(), target, re.escape(f"hidden states {ids} of a target of 8 layers")
        )

    def test_the_other_kinds_read_the_last_hidden_state(self, load: Load) -> None:
        assert load("eagle").head.shape.need.layers == load("mimo").head.shape.need.layers == (LAST,)


class TestKinds:
    def test_a_head_runs_as_its_kind_alone(self, tmp_path: Path, target: Path) -> None:
        wrong = replace(eagle(), kind=DrafterKind.EAGLE3)
        refused(tmp_path, wrong, wrong.tensors(), target, "holds EAGLE, which runs as eagle, not as eagle3")

    def test_several_mtp_layers_do_not_run_as_eagle(self, tmp_path: Path, target: Path) -> None:
        wrong = replace(mimo(2), kind=DrafterKind.EAGLE)
        refused(tmp_path, wrong, wrong.tensors(), target, "holds 2 MTP layers: run it as multi_layer_eagle")

    def test_config_and_tensors_agree_on_the_number_of_layers(self, tmp_path: Path, target: Path) -> None:
        wrong = replace(deepseek(1), facts={**deepseek(1).facts, "num_nextn_predict_layers": 2})
        refused(tmp_path, wrong, wrong.tensors(), target, "holds 1 MTP layers, its config.json says 2")

    def test_layers_with_a_gap_are_refused(self, tmp_path: Path, target: Path) -> None:
        tensors = {name.replace("mtp_layers.1.", "mtp_layers.2."): tensor for name, tensor in mimo(2).tensors().items()}
        refused(tmp_path, mimo(2), tensors, target, r"MTP layers \[0, 2\]: expected consecutive ones from 0")

    def test_layers_that_do_not_follow_the_targets_are_refused(self, tmp_path: Path, target: Path) -> None:
        tensors = {
            name.replace("layers.9.", "layers.10.").replace("layers.8.", "layers.9."): tensor
            for name, tensor in deepseek(2).tensors().items()
        }
        refused(
            tmp_path, deepseek(2), tensors, target, "first MTP layer at 9, expected it behind the target's 8 layers"
        )

    def test_a_plain_model_is_no_head(self, tmp_path: Path, target: Path) -> None:
        plain = replace(eagle(), facts=TARGET_FACTS)
        refused(
            tmp_path,
            plain,
            load_file(target / "model.safetensors"),
            target,
            "holds no head that is known: found 2 tensors",
        )

    def test_another_speculator_is_named(self, tmp_path: Path, target: Path) -> None:
        other = replace(speculators(), facts={**speculators().facts, "speculators_model_type": "medusa"})
        refused(
            tmp_path,
            other,
            other.tensors(),
            target,
            "speculators_model_type 'medusa', expected eagle or eagle3 or peagle or dflash or dflash2 or dspark",
        )

    def test_more_than_one_layer_is_refused(self, tmp_path: Path, target: Path) -> None:
        other = replace(eagle(), facts={**eagle().facts, "num_hidden_layers": 2})
        refused(tmp_path, other, other.tensors(), target, "num_hidden_layers is 2; expected a head of one layer")

    def test_an_unknown_architecture_is_named(self, tmp_path: Path, target: Path) -> None:
        other = replace(eagle(), facts={**eagle().facts, "model_type": "abacus"})
        refused(tmp_path, other, other.tensors(), target, "architecture 'abacus', which transformers does not know")

    def test_a_window_is_the_layers(self, tmp_path: Path, target: Path) -> None:
        windowed = {**eagle().facts, "model_type": "mistral", "sliding_window": 16}
        write(tmp_path, windowed, replace(eagle(), facts=windowed).tensors())
        head = load_head(tmp_path, target, DrafterKind.EAGLE)
        assert [layer.span for layer in head.geometry.layers] == [Span(window=16)]

    def test_positions_that_change_with_the_length_are_refused_at_load(self, tmp_path: Path, target: Path) -> None:
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        facts = {**eagle().facts, "rope_parameters": {**rope, "original_max_position_embeddings": 64}}
        other = replace(eagle(), facts=facts)
        refused(tmp_path, other, other.tensors(), target, "set max_context = 64")


class TestFolders:
    def test_no_folder_and_no_weights_are_refused(self, tmp_path: Path, target: Path) -> None:
        with pytest.raises(LoadError, match="nowhere does not exist"):
            load_head(tmp_path / "nowhere", target, DrafterKind.EAGLE)
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(LoadError, match=r"has no weights: expected model\.safetensors or pytorch_model\.bin"):
            load_head(tmp_path, target, DrafterKind.EAGLE)

    @pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
    def test_a_broken_file_is_named(self, tmp_path: Path, target: Path, file: str) -> None:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / file).write_bytes(b"broken")
        with pytest.raises(LoadError, match=f"{file} cannot be read"):
            load_head(tmp_path, target, DrafterKind.EAGLE)

    def test_a_shard_that_lacks_what_the_index_promises_is_named(self, tmp_path: Path, target: Path) -> None:
        write(tmp_path, eagle().facts, eagle().tensors(), "sharded")
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(
            index.read_text()
            .replace('"fc.bias": "model-00001', '"fc.bias": "model-00002')
            .replace('"fc.weight": "model-00001', '"fc.weight": "model-00002')
        )
        with pytest.raises(LoadError, match=r"model-00002-of-00002\.safetensors lacks fc"):
            load_head(tmp_path, target, DrafterKind.EAGLE)

    def test_an_unknown_dtype_is_refused(self, tmp_path: Path, target: Path) -> None:
        folder = write(tmp_path, eagle().facts, eagle().tensors())
        with pytest.raises(LoadError, match="dtype 'int3' is not known"):
            load_head(folder, target, DrafterKind.EAGLE, dtype="int3")

    def test_of_neither_folder_that_names_a_dtype_auto_is_refused_with_what_to_set(
        self, tmp_path: Path, target: Path
    ) -> None:
        folder = write(tmp_path, eagle().facts, eagle().tensors())
        with pytest.raises(LoadError, match=r"dtype is auto, but config.json names none in .* nor in .*; set dtype"):
            load_head(folder, target, DrafterKind.EAGLE, dtype="auto")


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_auto_is_the_dtype_that_the_heads_own_config_names(tmp_path: Path, target: Path, key: str) -> None:
    for number, published in enumerate((eagle(), speculators())):
        nested = published.facts.get("transformer_layer_config")
        named = {"transformer_layer_config": nested | {key: "bfloat16"}} if nested else {key: "bfloat16"}
        folder = write(tmp_path / str(number), published.facts | named, published.tensors())
        head = load_head(folder, target, published.kind, dtype="auto")
        assert {each.dtype for each in head.parameters()} == {head.dtype} == {torch.bfloat16}


def test_auto_for_a_head_whose_config_names_none_is_what_its_targets_does(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    config = target / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"torch_dtype": "float16"}))
    head = load_head(
        write(tmp_path / "head", eagle().facts, eagle().tensors()), target, DrafterKind.EAGLE, dtype="auto"
    )
    assert head.dtype is torch.float16


def needed(published: Published, name: str) -> bool:
    """Whether a head misses that tensor: not the target's, and not what can be derived or borrowed."""
    if name in ("t2d", "embed_tokens.weight") or name.endswith((".embed_tokens.weight", ".shared_head.head.weight")):
        return False
    if name == "d2t" and published.kind is DrafterKind.EAGLE3:
        return True
    return name != "fc.bias" and (
        not published.inside_target or "mtp_layers" in name or ".layers.8." in name or ".layers.9." in name
    )


def load_one(folder: Path, published: Published, tensors: dict[str, Tensor], target: Path) -> Head:
    written = write(folder / "head", published.facts, tensors)
    return load_head(written, written if published.inside_target else target, published.kind)


def refused(folder: Path, published: Published, tensors: dict[str, Tensor], target: Path, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        load_one(folder, published, tensors, target)


def numbers(head: Head) -> list[float]:
    return [tensor.double().abs().sum().item() for tensor in head.state_dict().values()]


def norm_of(head: Head) -> torch.nn.Module:
    assert isinstance(head, Eagle3Head)
    return head.norm

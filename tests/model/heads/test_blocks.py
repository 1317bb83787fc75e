"""Block drafters that vllm-project/speculators wrote, against the numbers that its own models gave (tests/data/heads)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specsplit.errors import LoadError
from specsplit.model import RowPages
from specsplit.model.heads import (
    BlockHead,
    BlockRows,
    BlockRunner,
    BlockSight,
    load_block_head,
    load_head,
)
from specsplit.model.layers.cpu.linear import PackedLinear
from specsplit.values import DrafterKind
from tests.model.heads.published import TARGET_FACTS, write
from tests.support.rounding import assert_same_sums

DATA = Path(__file__).parents[2] / "data" / "heads"
TAUGHT = "dflash2-taught"
"""Its blocks begin with tokens, as those of train-head do and those of others do not."""
EVERY = sorted(
    folder.name for kind in ("dflash", "dspark") for folder in DATA.glob(f"{kind}*") if folder.name != TAUGHT
)


def target_of(folder: Path, record: dict[str, Tensor]) -> Path:
    """The target whose embeddings, and LM head, the library's model had."""
    shared = {"model.embed_tokens.weight": record["embeddings"]}
    shared["lm_head.weight"] = record.get("lm_head", torch.zeros_like(record["embeddings"]))
    return write(folder, {**TARGET_FACTS, "vocab_size": 64, "hidden_size": 16}, shared)


def blocks_of(head: BlockHead, tokens: Tensor, anchors: list[int], free: int) -> BlockRows:
    """Blocks that begin with these tokens of a text, whose tokens have slots of their own numbers; theirs are from `free` on."""
    size, mask = head.said.size, head.said.mask_token
    rows = np.array([[int(tokens[anchor]), *[mask] * (size - 1)] for anchor in anchors])
    own = free + np.arange(rows.size)
    return BlockRows(
        rows, np.array(anchors), RowPages.alone(np.concatenate((np.arange(anchors[0]), own)), anchors[0] + len(own))
    )


def drafted(head: BlockHead, record: dict[str, Tensor], anchor: int, copies: int = 1) -> Tensor:
    """Hidden states [copies, size, W] of one block, drafted several times at once, over a paged context."""
    tokens, length = record["tokens"], len(record["tokens"])
    runner = BlockRunner(head, length + copies * head.said.size)
    runner.extend(record["features"], np.arange(length), np.arange(length))
    return runner.draft([blocks_of(head, tokens, [anchor] * copies, length)])


def drafted_behind(head: BlockHead, record: dict[str, Tensor], number: int) -> Tensor:
    """Hidden states [size, W] of a block that begins with tokens of the text, behind features of which the last are missing."""
    tokens, length = record["tokens"], len(record["tokens"])
    anchor, shown, missing = (int(record[name][number]) for name in ("anchors", "shown", "missing"))
    runner = BlockRunner(head, length + head.said.size)
    runner.extend(record["features"], np.arange(length), np.arange(length))
    block = np.full((1, head.said.size), head.said.mask_token)
    block[0, : shown + 1] = tokens[anchor : anchor + shown + 1].numpy()
    slots = np.concatenate((np.arange(anchor - missing), length + np.arange(head.said.size)))
    return runner.draft([BlockRows(block, np.array([anchor]), RowPages.alone(slots, len(slots)))])[0]


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BlockHead, dict[str, Tensor]]:
    folder = DATA / request.param
    record = load_file(folder / "record.safetensors")
    return load_block_head(folder, target_of(tmp_path, record)), record


@pytest.mark.parametrize("loaded", EVERY, indirect=True)
def test_logits_of_every_block_agree(loaded: tuple[BlockHead, dict[str, Tensor]]) -> None:
    head, record = loaded
    for number, anchor in enumerate(record["anchors"].tolist()):
        hidden = drafted(head, record, anchor)[0]
        assert_same_sums(head.draft_logits(hidden), record["logits"][number])


@pytest.mark.parametrize("loaded", [TAUGHT], indirect=True)
def test_blocks_that_begin_with_tokens_are_served_as_they_are_learnt(
    loaded: tuple[BlockHead, dict[str, Tensor]],
) -> None:
    head, record = loaded
    assert head.said.sights == (BlockSight(1, causal=True), BlockSight(causal=True))
    assert record["shown"].any() and record["missing"].any() and not record["shown"].all()
    for number in range(len(record["anchors"])):
        assert_same_sums(head.draft_logits(drafted_behind(head, record, number)), record["logits"][number])


@pytest.mark.parametrize("loaded", EVERY, indirect=True)
def test_choices_and_confidence_agree_given_the_text(loaded: tuple[BlockHead, dict[str, Tensor]]) -> None:
    head, record = loaded
    for number, anchor in enumerate(record["anchors"].tolist()):
        hidden, memory = drafted(head, record, anchor)[0], None
        logits = head.draft_logits(hidden)
        for position in range(head.said.size):
            before = record["tokens"][anchor + (position if head.said.from_anchor else max(0, position - 1))][None]
            own = hidden[position][None]
            found, memory = head.choice.conditioned(logits[position][None], own, before, memory)
            if "conditioned" in record:
                assert_same_sums(found[0], record["conditioned"][number, position])
            if "scores" in record:
                chosen = record["candidates"][number, position]
                assert_same_sums(found[0, chosen], record["scores"][number, position])
                assert found.isfinite().sum() == len(chosen)
            confidence = head.choice.confidence(own, before)
            assert (confidence is not None) == ("confidence" in record)
            if confidence is not None:
                assert_same_sums(
                    confidence, torch.nn.functional.logsigmoid(record["confidence"][number, position])[None]
                )


@pytest.mark.parametrize("loaded", ["dflash", "dflash2", "dflash-windows"], indirect=True)
def test_blocks_beside_one_another_do_not_see_each_other(loaded: tuple[BlockHead, dict[str, Tensor]]) -> None:
    head, record = loaded
    alone, several = drafted(head, record, 7), drafted(head, record, 7, copies=3)
    for each in several:
        assert_same_sums(each, alone[0])


def facts_of(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "config.json").read_text())


def by_z_lab(name: str, **more: Any) -> dict[str, Any]:
    """The config.json of one of these folders as z-lab says the same."""
    facts = facts_of(name)
    own = {
        "mask_token_id": facts["mask_token_id"],
        "target_layer_ids": [layer - 1 for layer in facts["aux_hidden_state_layer_ids"]],
        **more,
    }
    return {
        **facts["transformer_layer_config"],
        "architectures": ["DFlashDraftModel"],
        "block_size": facts["block_size"],
        "draft_vocab_size": facts["draft_vocab_size"],
        "dflash_config": own,
        "num_target_layers": 8,
    }


RENAMED = {"layers.0.": "midlayer.", "fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}


@pytest.mark.parametrize("names", [{}, RENAMED], ids=["plain", "renamed"])
@pytest.mark.parametrize("name", ["dflash", "dflash-whole-vocabulary", "dflash-windows"])
def test_the_layout_of_z_lab_gives_the_same(name: str, names: dict[str, str], tmp_path: Path) -> None:
    record, tensors = load_file(DATA / name / "record.safetensors"), load_file(DATA / name / "model.safetensors")
    for old, new in names.items():
        tensors = {
            new + key.removeprefix(old) if key.startswith(old) else key: tensor for key, tensor in tensors.items()
        }
    folder = write(tmp_path / "head", by_z_lab(name), tensors)
    head = load_block_head(folder, target_of(tmp_path / "target", record))
    assert head.shape.need.layers == (1, 3, 5)
    for number, anchor in enumerate(record["anchors"].tolist()):
        assert_same_sums(head.draft_logits(drafted(head, record, anchor)[0]), record["logits"][number])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (BlockSight(5, True), BlockSight(None, False))),
        ({"causal": False}, (BlockSight(5, False), BlockSight(None, False))),
        ({"causal": True}, (BlockSight(5, True), BlockSight(None, True))),
        ({"swa_window_size": 3}, (BlockSight(3, True), BlockSight(None, False))),
    ],
)
def test_what_layers_see_is_read(more: dict[str, Any], expected: tuple[BlockSight, ...], tmp_path: Path) -> None:
    record = load_file(DATA / "dflash-windows" / "record.safetensors")
    tensors = load_file(DATA / "dflash-windows" / "model.safetensors")
    folder = write(tmp_path / "head", by_z_lab("dflash-windows", **more), tensors)
    assert load_block_head(folder, target_of(tmp_path / "target", record)).said.sights == expected


@pytest.mark.parametrize("place", ["tensor", "file"])
def test_an_embedding_of_the_masks_own_stands_for_it(place: str, tmp_path: Path) -> None:
    """Under a target in whose embeddings the mask has another row."""
    record, tensors = (
        load_file(DATA / "dflash" / "record.safetensors"),
        load_file(DATA / "dflash" / "model.safetensors"),
    )
    embedding, embeddings = record["embeddings"][63].clone(), record["embeddings"].clone()
    embeddings[63] = 9.0
    target = target_of(tmp_path / "target", {**record, "embeddings": embeddings})
    if place == "tensor":
        tensors["mask_embedding"] = embedding
    folder = write(tmp_path / "head", facts_of("dflash"), tensors)
    if place == "file":
        torch.save({"mask_token_id": 63, "embedding": embedding[None]}, folder / "mask_embedding.pt")
    head = load_block_head(folder, target)
    for number, anchor in enumerate(record["anchors"].tolist()):
        assert_same_sums(head.draft_logits(drafted(head, record, anchor)[0]), record["logits"][number])


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("dflash", {"block_size": 1}, "block_size is 1; expected 2 or more"),
        ("dflash", {"mask_token_id": None}, "mask_token_id is None; expected the token of the mask"),
        ("dflash", {"mask_token_id": 64}, "its mask is token 64 of 64"),
        ("dflash", {"aux_hidden_state_layer_ids": None}, "names no hidden states"),
        ("dflash", {"aux_hidden_state_layer_ids": [1, 3, 9]}, "hidden states [1, 3, 9] of a target of 8 layers"),
        ("dflash", {"sprout_factor": 2}, "sprout_factor = 2, which may change what the head computes"),
        ("dflash", {"dflash_config": {"attention_sink_bias": True}}, "dflash_config.attention_sink_bias = True"),
        ("dflash2", {"conv_group_size": 5}, "conv_group_size 5; expected 1 to 4 tokens of a block, and a divisor of 16"),
        ("dflash2", {"selector_rank": 0}, "selector_rank is 0"),
        ("dspark", {"markov_head_type": "quantum"}, "markov_head_type 'quantum'"),
        ("dspark", {"markov_rank": 5}, "markov_head.markov_w1.weight is [64, 4], expected [64, 5]"),
        ("dflash", {"speculators_model_type": "dspark", "markov_rank": 4}, "markov_head.markov_w1.weight is missing"),
        ("dspark", {"speculators_model_type": "dflash"}, "markov_head.markov_w1.weight [64, 4] is left over"),
        ("dspark", {"enable_confidence_head": False}, "enable_confidence_head is False, and tensors confidence_head.* are there"),
        ("dspark-rnn", {"enable_confidence_head": True}, "is True, and tensors confidence_head.* are not there"),
        ("dflash", {"transformer_layer_config": None}, "names the architecture None"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    record, tensors = load_file(DATA / name / "record.safetensors"), load_file(DATA / name / "model.safetensors")
    folder = write(tmp_path / "head", {**facts_of(name), **changes}, tensors)
    with pytest.raises(LoadError) as refusal:
        load_block_head(folder, target_of(tmp_path / "target", record))
    assert reason in str(refusal.value)


def test_block_drafters_and_heads_are_told_apart(tmp_path: Path) -> None:
    record = load_file(DATA / "dflash" / "record.safetensors")
    target = target_of(tmp_path, record)
    with pytest.raises(LoadError, match="holds EAGLE-3, which is no block drafter"):
        load_block_head(DATA / "eagle3-llama", target)
    with pytest.raises(LoadError, match="holds DFlash"):
        load_head(DATA / "dflash", target, DrafterKind.EAGLE3)


def test_one_that_was_made_for_shorter_texts_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = load_file(DATA / "dflash" / "record.safetensors")
    with caplog.at_level(logging.WARNING):
        head = load_block_head(DATA / "dflash", target_of(tmp_path, record))
    assert head.shape.max_context == 256
    assert "made for texts of 256 tokens" in caplog.text


def test_a_kind_that_the_folder_does_not_hold_is_refused(tmp_path: Path) -> None:
    target = target_of(tmp_path, load_file(DATA / "dspark" / "record.safetensors"))
    with pytest.raises(LoadError, match="holds DSpark, which runs as dspark, not as dflash"):
        load_block_head(DATA / "dspark", target, DrafterKind.DFLASH)


@pytest.mark.parametrize("loaded", ["dflash-windows", "dflash2", "dspark"], indirect=True)
def test_modules_that_are_replaced_for_a_cpu_say_the_same(loaded: tuple[BlockHead, dict[str, Tensor]]) -> None:
    head, record = loaded
    head.use_cpu_layers()
    assert any(isinstance(each, PackedLinear) for each in head.modules())
    for number, anchor in enumerate(record["anchors"].tolist()):
        assert_same_sums(head.draft_logits(drafted(head, record, anchor)[0]), record["logits"][number])

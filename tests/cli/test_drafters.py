"""Which drafters `up` starts, and with what models, for what the command line says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from specsplit.cli.drafters import CHOICES, KINDS, Drafters, choose_drafters
from specsplit.cli.folders import DRAFTS, drafts_beside
from specsplit.errors import InvalidRequest
from specsplit.values import DrafterKind
from specsplit_coordinator.members.member_state import KIND_ORDER

EAGLE3, STANDALONE, NGRAM = DrafterKind.EAGLE3, DrafterKind.STANDALONE, DrafterKind.NGRAM


def model(folder: Path) -> Path:
    """What passes for a model as long as nobody loads it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target with nothing beside it."""
    return model(tmp_path / "target")


@pytest.fixture
def zoo(target: Path) -> dict[DrafterKind, Path]:
    """A folder beside the target for every kind that needs one."""
    return {kind: model(target.parent / name) for kind, name in DRAFTS.items()}


def test_the_kinds_are_the_coordinators_in_its_order() -> None:
    assert KINDS == KIND_ORDER
    assert CHOICES == "eagle3, dflash, dspark, multi_layer_eagle, eagle, standalone, ngram or none"
    assert set(DRAFTS) == {kind for kind in DrafterKind if kind.needs_model}


def test_nothing_said_is_the_best_kind_that_has_a_model_beside_the_target(target: Path) -> None:
    assert choose_drafters((), (), target) == Drafters((), {}, lookup=True)
    for kind in reversed(tuple(DRAFTS)):
        folder = model(target.parent / DRAFTS[kind])
        assert choose_drafters((), (), target) == Drafters((kind,), {kind: folder})


MTP = {1: DrafterKind.EAGLE, 2: DrafterKind.MULTI_LAYER_EAGLE}
"""The best that so many layers in the target's folder run as: one is fed its own states."""


@pytest.mark.parametrize("layers", MTP)
def test_mtp_layers_inside_the_targets_folder_count_where_there_are_none_beside_it(target: Path, layers: int) -> None:
    kind = MTP[layers]
    (target / "config.json").write_text(json.dumps({"model_type": "glm4_moe"}))
    names = [f"model.layers.{46 + layer}.{name}.weight" for layer in range(layers) for name in ("enorm", "eh_proj")]
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    assert choose_drafters((), (), target) == Drafters((kind,), {kind: target})
    for asked in {kind, DrafterKind.MULTI_LAYER_EAGLE}:
        assert choose_drafters([asked], (), target).models == {asked: target}
    standalone = model(target.parent / DRAFTS[STANDALONE])
    assert choose_drafters([STANDALONE], (), target).models == {STANDALONE: standalone}
    assert choose_drafters((), (), target).kinds == (kind,)
    beside = model(target.parent / DRAFTS[kind])
    assert choose_drafters((), (), target).models == {kind: beside}
    best = model(target.parent / DRAFTS[EAGLE3])
    assert choose_drafters((), (), target).models == {EAGLE3: best}


@pytest.mark.parametrize(
    ("facts", "tensor"),
    [
        ({"model_type": "llama"}, "model.layers.46.enorm.weight"),
        ({"model_type": "glm4_moe"}, "model.layers.45.input_layernorm.weight"),
    ],
)
def test_a_target_of_another_kind_or_without_such_layers_has_none(
    target: Path, facts: dict[str, str], tensor: str
) -> None:
    (target / "config.json").write_text(json.dumps(facts))
    save_file({tensor: np.zeros(2, np.float32)}, target / "model.safetensors")
    assert choose_drafters((), (), target) == Drafters((), {}, lookup=True)


@pytest.mark.usefixtures("zoo")
def test_none_is_no_drafter_and_stands_alone(target: Path) -> None:
    assert choose_drafters(["none"], (), target) == Drafters((), {})
    with pytest.raises(InvalidRequest, match="--drafter: none leaves no place for another"):
        choose_drafters(["ngram", "none"], (), target)


def test_every_kind_asked_for_gets_the_folder_beside_the_target(target: Path, zoo: dict[DrafterKind, Path]) -> None:
    chosen = choose_drafters(["ngram", "eagle", "eagle3", "ngram"], (), target)
    assert chosen.kinds == (NGRAM, DrafterKind.EAGLE, EAGLE3, NGRAM)
    assert chosen.models == {kind: zoo[kind] for kind in (DrafterKind.EAGLE, EAGLE3)}
    assert list(drafts_beside(target).items()) == list(zoo.items())


def test_a_folder_alone_says_standalone_and_a_folder_with_a_kind_says_that_kind(target: Path, tmp_path: Path) -> None:
    mine = model(tmp_path / "mine")
    assert choose_drafters((), [str(mine)], target) == Drafters((STANDALONE,), {STANDALONE: mine})
    assert choose_drafters((), [f"eagle3={mine}"], target) == Drafters((EAGLE3,), {EAGLE3: mine})
    both = choose_drafters((), [str(mine), f"eagle3={mine}"], target)
    assert both == Drafters((EAGLE3, STANDALONE), {EAGLE3: mine, STANDALONE: mine})


def test_a_folder_alone_goes_to_the_one_kind_that_is_left_without(target: Path, tmp_path: Path) -> None:
    mine, other = model(tmp_path / "mine"), model(tmp_path / "other=1")
    assert choose_drafters(["ngram", "eagle3"], [str(mine)], target).models == {EAGLE3: mine}
    chosen = choose_drafters(["eagle3", "standalone"], [f"eagle3={mine}", str(other)], target)
    assert chosen.models == {EAGLE3: mine, STANDALONE: other}


def test_a_folder_that_is_given_beats_the_one_beside_the_target(
    target: Path, zoo: dict[DrafterKind, Path], tmp_path: Path
) -> None:
    mine = model(tmp_path / "mine")
    chosen = choose_drafters(["eagle3", "standalone"], [f"eagle3={mine}"], target)
    assert chosen.models == {EAGLE3: mine, STANDALONE: zoo[STANDALONE]}


@pytest.mark.parametrize(
    ("kinds", "models", "said"),
    [
        (
            ["eagle9"],
            [],
            "--drafter: is 'eagle9', expected eagle3, dflash, dspark, multi_layer_eagle, eagle, standalone, ngram or none",
        ),
        (["eagle3"], [], r"--draft-model: is required for eagle3 drafters: .*/eagle3; say --draft-model eagle3=FOLDER"),
        (["standalone"], [], "--draft-model: is required for standalone drafters"),
        (["eagle3"], ["nowhere"], "--draft-model: there is no folder nowhere"),
        (["eagle3"], ["eagle4=nowhere"], "--draft-model: there is no folder eagle4=nowhere"),
        (["eagle3", "eagle"], ["."], r"--draft-model: must say which kind it is for, as KIND=\."),
        (["eagle3"], [".", "."], "--draft-model: must say which kind it is for"),
        (["eagle3"], ["eagle3=.", "eagle3=."], "--draft-model: is given twice for eagle3 drafters"),
        (["eagle3"], ["eagle3=.", "eagle=."], "--draft-model: is given for eagle drafters, of which none is asked for"),
        (["ngram"], ["ngram=."], "--draft-model: is given for ngram drafters, of which none"),
        (["ngram"], ["."], r"--draft-model: is \., which no drafter that is asked for needs"),
        (["none"], ["."], r"--draft-model: is \., which no drafter that is asked for needs"),
    ],
)
def test_what_cannot_be_is_refused_by_option(kinds: list[str], models: list[str], said: str, target: Path) -> None:
    with pytest.raises(InvalidRequest, match=said):
        choose_drafters(kinds, models, target)

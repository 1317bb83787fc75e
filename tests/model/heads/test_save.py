"""What is saved has the published names, and is read back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, LlamaConfig

from specsplit.errors import LoadError
from specsplit.features import LAST, FeatureFormat
from specsplit.model.heads import (
    Eagle3Head,
    Eagle3Variant,
    EagleHead,
    Head,
    MtpHead,
    TargetEmbeddings,
    load_head,
    projected,
    projection_of,
    save_head,
)
from specsplit.mtp.families import DEEPSEEK
from specsplit.mtp.family import MtpFormula
from specsplit.values import DrafterKind
from tests.model.heads.published import (
    DRAFT_VOCAB,
    HIDDEN,
    TARGET_FACTS,
    deepseek,
    drafted_ids,
    eagle,
    eagle3,
    mimo,
    write,
)
from tests.support.rounding import assert_same_sums

NORMS = Eagle3Variant(norm_before_residual=True, fc_norm=True, norm_output=True, logit_scale=0.25)


def config(facts: dict[str, Any] = TARGET_FACTS) -> Any:
    return LlamaConfig.from_dict(facts)


def heads(ends: TargetEmbeddings) -> dict[str, Head]:
    reduced = Eagle3Head(
        config(), ends, layers=(1, 4, 7), draft_vocab_size=DRAFT_VOCAB, variant=Eagle3Variant(norm_before_residual=True)
    )
    reduced.set_draft_tokens(drafted_ids())
    return {
        "eagle": EagleHead(config(), ends),
        "eagle3": reduced,
        "eagle3, whole vocabulary": Eagle3Head(config(), ends, layers=(0, 4, 8), bias=True),
        "eagle3, two layers and norms": Eagle3Head(config(), ends, layers=(2, 5), num_blocks=2, variant=NORMS),
        "p-eagle": Eagle3Head(
            config(), ends, layers=(1, 4, 7), variant=Eagle3Variant(norm_before_fc=True, mask_token=9)
        ),
        "mimo": MtpHead([config()] * 3, ends),
        "deepseek": MtpHead([config()] * 2, ends, formula=DEEPSEEK.formula),
        "recurrent": MtpHead([config()], ends, recurrent=True),
        "recurrent, embedding first": MtpHead([config()], ends, formula=DEEPSEEK.formula, recurrent=True),
    }


@pytest.fixture(scope="module")
def ends(target: Path) -> TargetEmbeddings:
    return TargetEmbeddings.load(target)


@pytest.mark.parametrize(
    "name",
    [
        "eagle",
        "eagle3",
        "eagle3, whole vocabulary",
        "eagle3, two layers and norms",
        "p-eagle",
        "mimo",
        "deepseek",
        "recurrent",
        "recurrent, embedding first",
    ],
)
def test_a_saved_head_comes_back(tmp_path: Path, target: Path, ends: TargetEmbeddings, name: str) -> None:
    torch.manual_seed(5)
    head = heads(ends)[name]
    save_head(head, tmp_path)
    back = load_head(tmp_path, target, head.shape.kind, attn_implementation="sdpa")
    assert {**vars(back.shape), "model": ""} == vars(head.shape)
    assert getattr(back, "variant", None) == getattr(head, "variant", None)
    ours, theirs = head.own_tensors(), back.own_tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_is_saved_has_the_published_names(tmp_path: Path, ends: TargetEmbeddings) -> None:
    expected = {"eagle": eagle(), "eagle3": eagle3()}
    for name, published in expected.items():
        save_head(heads(ends)[name], tmp_path / name)
        assert stored(tmp_path / name).keys() == published.shapes.keys() - {"embed_tokens.weight"}
    save_head(heads(ends)["mimo"], tmp_path / "mimo")
    names = {name for name in mimo(3).shapes if "mtp_layers" in name and not name.endswith("bias")}
    assert stored(tmp_path / "mimo").keys() == names


def test_what_is_saved_can_be_rounded(tmp_path: Path, ends: TargetEmbeddings) -> None:
    save_head(heads(ends)["eagle3"], tmp_path, dtype=torch.bfloat16)
    kinds = stored(tmp_path)
    assert kinds["fc.weight"] is torch.bfloat16 and kinds["d2t"] is torch.int64 and kinds["t2d"] is torch.bool
    assert AutoConfig.from_pretrained(tmp_path).dtype is torch.bfloat16


def test_experts_are_saved_one_by_one(tmp_path: Path) -> None:
    published = deepseek(2)
    folder = write(tmp_path / "head", published.facts, published.tensors())
    head = load_head(folder, folder, published.kind)
    save_head(head, tmp_path / "saved")
    mine = {name for name in published.shapes if ".layers.8." in name or ".layers.9." in name}
    assert stored(tmp_path / "saved").keys() == {
        name for name in mine if "embed_tokens" not in name and "head.head" not in name
    }
    back = load_head(tmp_path / "saved", folder, published.kind)
    assert all(torch.equal(tensor, back.own_tensors()[name]) for name, tensor in head.own_tensors().items())


def test_a_head_that_no_layout_can_say_is_refused(tmp_path: Path, ends: TargetEmbeddings) -> None:
    for neither in (
        MtpFormula(embedding_first=True, normed_states=True),
        MtpFormula(embedding_first=False, normed_states=False),
    ):
        with pytest.raises(ValueError, match="DeepSeek"):
            save_head(MtpHead([config()], ends, formula=neither), tmp_path)
    with pytest.raises(ValueError, match="cannot be saved"):
        save_head(Eagle3Head(config(), ends, layers=(1, 2, LAST)), tmp_path)


class TestProjection:
    def test_it_is_fc_whatever_the_dtype(self, tmp_path: Path, target: Path, ends: TargetEmbeddings) -> None:
        """Applied by the verifier or by the head, the states are the same."""
        save_head(heads(ends)["eagle3, whole vocabulary"], tmp_path)
        head = load_head(tmp_path, target, DrafterKind.EAGLE3)
        weight, digest = projection_of(tmp_path)
        assert weight.shape == (HIDDEN, 3 * HIDDEN) and weight.dtype is torch.float32 and len(digest) == 64
        features = torch.randn(4, 3 * HIDDEN)
        assert_same_sums(head.fuse(features @ weight.T, projected=True), head.fuse(features))

    def test_the_need_becomes_a_third(self, tmp_path: Path, ends: TargetEmbeddings) -> None:
        head = heads(ends)["eagle3"]
        save_head(head, tmp_path)
        need = projected(head.shape.need, tmp_path)
        assert need.projection == projection_of(tmp_path)[1]
        assert need.layout(HIDDEN, FeatureFormat.FLOAT32).width == HIDDEN
        assert head.shape.need.layout(HIDDEN, FeatureFormat.FLOAT32).width == 3 * HIDDEN

    def test_another_matrix_has_another_digest(self, tmp_path: Path, ends: TargetEmbeddings) -> None:
        for name in ("a", "b"):
            save_head(heads(ends)["eagle3"], tmp_path / name)
        assert projection_of(tmp_path / "a")[1] != projection_of(tmp_path / "b")[1]

    def test_other_kinds_have_none(self, tmp_path: Path, ends: TargetEmbeddings) -> None:
        save_head(heads(ends)["eagle"], tmp_path)
        with pytest.raises(LoadError, match="holds EAGLE, which has no projection"):
            projection_of(tmp_path)
        with pytest.raises(ValueError, match="eagle heads have no projection"):
            heads(ends)["eagle"].fuse(torch.zeros(1, HIDDEN), projected=True)


def stored(folder: Path) -> dict[str, torch.dtype]:
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        return {name: opened.get_tensor(name).dtype for name in opened.keys()}  # noqa: SIM118

"""Drafters of a running cluster go on with other weights: the text is the target's all the while, and drafts come from the new ones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, TokenPrompt
from specsplit.engine import UpdateWeights
from specsplit.errors import InvalidRequest, NotFound
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import DrafterInfo, DrafterKind
from tests.support.command import run
from tests.support.greedy import greedy_texts

from .conftest import SERIAL, as_soon_as

POCKET = Path("models/pocket")
PROMPT = tuple(Tokenizer.load(POCKET / "target").encode("def add(a, b):\n"))
COUNT = 48
KINDS = {"standalone": "draft", "eagle3": "eagle3"}


def _blanked(source: Path, folder: Path) -> None:
    """Make a model that knows nothing: matrices of noise in the place of those of `source`."""
    shutil.copytree(source, folder)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        noise = torch.Generator().manual_seed(0)
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and tensor.is_floating_point():
                tensors[name] = (torch.randn(tensor.shape, generator=noise) * 0.05).to(tensor.dtype)
        save_file(tensors, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    for kind, name in KINDS.items():
        _blanked(POCKET / name, root / f"{kind}-blank")
        shutil.copytree(POCKET / name, root / f"{kind}-trained")
    return root


@pytest.fixture(scope="module")
def cluster(weights: Path) -> Iterator[LocalCluster]:
    blanks = {kind: weights / f"{kind}-blank" for kind in KINDS}
    drafter, verifier = {"weights_dir": weights}, {"dtype": "float32", "paced_step_base_ms": 5.0}
    with LocalCluster(
        POCKET / "target", blanks, drafters=[*KINDS, "ngram"], drafter=drafter, verifier=verifier
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy_texts(POCKET / "target", [[*PROMPT]], 400)[0][len(PROMPT) :]


def _accepted(client: Client, kind: str, expected: list[int]) -> float:
    """The share of the tokens that were drafted, and accepted."""
    result = client.generate(TokenPrompt(PROMPT), drafter=kind, plan=SERIAL, max_tokens=COUNT)
    assert list(result.tokens) == expected[:COUNT]
    return result.speculation.accepted / COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_come_from_the_weights_in_force_and_text_from_the_target(
    cluster: LocalCluster, expected: list[int], kind: str
) -> None:
    with cluster.client() as client:
        assert _accepted(client, kind, expected) < 0.2
        got = _updated_meanwhile(client, kind)
        assert got == expected[: len(got)], "in the middle of a request too"
        assert _accepted(client, kind, expected) > 0.4
        as_soon_as(lambda: _versions(client)[DrafterKind(kind)] == 2)
        back = client.update_weights(UpdateWeights(f"{kind}-blank"), drafters=DrafterKind(kind), timeout_s=120)
        assert [each.version for each in back] == [3]
        assert _accepted(client, kind, expected) < 0.2


def _updated_meanwhile(client: Client, kind: str) -> list[int]:
    """The tokens of a request, in the middle of which its drafter gets the weights that were trained."""
    got: list[int] = []
    updating = threading.Thread(
        target=client.update_weights,
        args=(UpdateWeights(f"{kind}-trained"),),
        kwargs={"drafters": DrafterKind(kind), "timeout_s": 120},
    )
    for event in client.stream(TokenPrompt(PROMPT), drafter=kind, plan=SERIAL, max_tokens=400):
        got += event.tokens if isinstance(event, Delta) else ()
        if len(got) > 8 and updating.ident is None:
            updating.start()
    updating.join()
    return got


def _versions(client: Client) -> dict[DrafterKind, int]:
    members = client.cluster().members
    return {each.role.kind: each.weights_version for each in members if isinstance(each.role, DrafterInfo)}


def test_what_cannot_be_taken_is_refused_with_a_sentence(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(folder: str, kind: DrafterKind) -> str:
        with cluster.client() as client:
            (answer,) = client.update_weights(UpdateWeights(folder), drafters=kind, timeout_s=120)
        assert not answer.version
        return answer.message

    assert "kind ngram has no weights" in said("standalone-trained", DrafterKind.NGRAM)
    assert "there is no folder nowhere in weights_dir of this drafter" in said("nowhere", DrafterKind.STANDALONE)
    assert "the weights are of another model, by config.json" in said("eagle3-trained", DrafterKind.STANDALONE)
    with cluster.client() as client:
        with pytest.raises(NotFound, match="there is no drafter of kind dspark in the cluster"):
            client.update_weights(UpdateWeights("x"), drafters=DrafterKind.DSPARK)
        with pytest.raises(InvalidRequest, match="expected one of them"):
            client.update_weights(UpdateWeights("x"), "drafter-0", drafters=DrafterKind.EAGLE3)
        name = next(each.member_id for each in client.cluster().members if isinstance(each.role, DrafterInfo))
    assert run("update-weights", "nowhere", "--member", name, "--address", cluster.address) == 1
    assert f"{name}: " in capsys.readouterr().err


def test_a_head_that_rests_since_its_target_has_other_weights_drafts_again_with_others_of_its_own(
    weights: Path, expected: list[int]
) -> None:
    shutil.copytree(POCKET / "target", weights / "target", dirs_exist_ok=True)
    verifier = {"weights_dir": weights, "dtype": "float32", "older_heads": "rest"}
    heads = {"eagle3": weights / "eagle3-trained"}
    with (
        LocalCluster(
            POCKET / "target", heads, drafters=["eagle3"], verifier=verifier, drafter={"weights_dir": weights}
        ) as here,
        here.client() as client,
    ):
        assert _accepted(client, "eagle3", expected) > 0.4
        assert [each.version for each in client.update_weights(UpdateWeights("target"), timeout_s=120)] == [2]
        assert not _accepted(client, "eagle3", expected), "it rests"
        client.update_weights(UpdateWeights("eagle3-trained"), drafters=DrafterKind.EAGLE3, timeout_s=120)
        as_soon_as(lambda: _accepted(client, "eagle3", expected) > 0.4)

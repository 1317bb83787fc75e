"""A running cluster goes on with other weights of its target: its drafters draft on, and the coordinator tells who has which."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Delta, Done, TokenPrompt
from specsplit.engine import UpdateWeights
from specsplit.errors import NotFound
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import DrafterInfo
from tests.support.command import run
from tests.support.greedy import greedy_texts

from .conftest import SERIAL, as_soon_as

POCKET = Path("models/pocket")
PROMPT = tuple(Tokenizer.load(POCKET / "target").encode("def add(a, b):\n"))
COUNT = 48


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket target, and another revision of it, whose texts are others and whose head still knows them well."""
    root = tmp_path_factory.mktemp("weights")
    for name in ("first", "second"):
        shutil.copytree(POCKET / "target", root / name)
    for seed in range(10):  # which numbers a seed gives depends on torch, and few of them change no text
        _revise(root, seed)
        texts = [greedy_texts(root / name, [[*PROMPT]], COUNT) for name in ("first", "second")]
        if texts[0] != texts[1]:
            return root
    raise AssertionError("no revision whose texts are others")


def _revise(root: Path, seed: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(root / "first")
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.03 * parameter.float().std().item())
    model.save_pretrained(root / "second")


@pytest.fixture(scope="module")
def expected(weights: Path) -> dict[str, list[int]]:
    """What either revision says behind the prompt."""
    return {name: greedy_texts(weights / name, [[*PROMPT]], COUNT)[0][len(PROMPT) :] for name in ("first", "second")}


@pytest.fixture(scope="module")
def cluster(weights: Path) -> Iterator[LocalCluster]:
    verifier = {"weights_dir": weights, "dtype": "float32", "paced_step_base_ms": 5.0}
    with LocalCluster(
        weights / "first", {"eagle3": POCKET / "eagle3"}, drafters=["eagle3", "ngram"], verifiers=2, verifier=verifier
    ) as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_the_output_is_that_of_the_weights_in_force_whatever_drafts(
    cluster: LocalCluster, expected: dict[str, list[int]]
) -> None:
    with cluster.client() as client:
        for name in ("second", "first"):
            answers = client.update_weights(UpdateWeights(name), timeout_s=120)
            assert len(answers) == 2 and all(answer.version for answer in answers)
            for drafter in ("eagle3", "ngram", "none"):
                results = [
                    client.generate(TokenPrompt(PROMPT), drafter=drafter, plan=SERIAL, max_tokens=COUNT)
                    for _ in range(2)
                ]
                assert [list(result.tokens) for result in results] == [expected[name]] * 2, drafter
                assert drafter != "eagle3" or all(result.speculation.accepted for result in results), "it drafts on"


def test_a_request_that_runs_goes_on_behind_its_tokens_and_the_coordinator_tells_the_version(
    cluster: LocalCluster, weights: Path, expected: dict[str, list[int]]
) -> None:
    with cluster.client() as client:
        before = client.update_weights(UpdateWeights("first"), timeout_s=120)
        tokens: list[int] = []
        events = client.stream(TokenPrompt(PROMPT), drafter="eagle3", plan=SERIAL, max_tokens=400)
        updating = threading.Thread(
            target=client.update_weights, args=(UpdateWeights("second", restart=True),), kwargs={"timeout_s": 120}
        )
        for event in events:
            if isinstance(event, Delta):
                tokens += event.tokens
            if len(tokens) > 8 and updating.ident is None:
                updating.start()
            if isinstance(event, Done):
                assert event.usage.completion_tokens == len(tokens)
        updating.join()
        first, second = (_are_of(weights / name, tokens) for name in ("first", "second"))
        assert any(all(first[:at]) and all(second[at:]) for at in range(1, len(tokens))), "one ends, the other goes on"
        versions = {each.member_id: each.version + 1 for each in before}
        as_soon_as(lambda: versions == _versions(client))


def _versions(client: Client) -> dict[str, int]:
    """The version of the weights of every verifier."""
    members = client.cluster().members
    return {each.member_id: each.weights_version for each in members if not isinstance(each.role, DrafterInfo)}


def _are_of(folder: Path, tokens: list[int]) -> list[bool]:
    """Of each token, whether it is what the weights in a folder take for the likeliest behind all before it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        likeliest = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1].argmax(dim=-1).tolist()
    return [own == token for own, token in zip(likeliest, tokens, strict=True)]


def test_one_verifier_is_told_by_its_name_and_the_command_says_what_came_of_it(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster.client() as client:
        with pytest.raises(NotFound, match="there is no verifier or drafter 'nobody' in the cluster"):
            client.update_weights(UpdateWeights("second"), "nobody")
        name = next(iter(_versions(client)))
    assert run("update-weights", "second", "--member", name, "--address", cluster.address) == 0
    assert capsys.readouterr().out.startswith(f"{name}: the target goes on with second, version ")
    assert run("update-weights", "nowhere", "--address", cluster.address) == 1
    assert capsys.readouterr().err.count("there is no folder nowhere in weights_dir of this verifier") == 2

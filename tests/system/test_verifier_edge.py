"""A gateway before a verifier gets, token for token, what it gets before the coordinator, and drafters serve it there too."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from smg_grpc_proto.generated import common_pb2

from specsplit.cli.local import LocalCluster
from specsplit.text.tokenizer import Tokenizer
from tests.support.engine_protocol import answer, gateway, request

POCKET = Path("models/pocket")
PROMPT = Tokenizer.load(POCKET / "target").encode("def add(a, b):\n")
pytestmark = pytest.mark.timeout(300)
"""A step may wait for its drafts for as long as `cluster` says, several times over on a busy machine."""

FREE: dict[str, Any] = {"max_tokens": 12}
SEEDED: dict[str, Any] = {
    "max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 7, "frequency_penalty": 0.3,
    "presence_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {10: 1.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def cluster(profiles: Path) -> Iterator[LocalCluster]:
    """Steps wait for drafts, so that some are accepted however busy the machine is."""
    waiting = {"draft_ahead": False, "wait_budget_us": 2_000_000, "profile_dir": profiles}
    with LocalCluster(
        POCKET / "target", {"eagle3": POCKET / "eagle3"}, drafters=["eagle3"], verifier=waiting
    ) as cluster:
        yield cluster


@pytest.fixture
async def edges(cluster: LocalCluster) -> AsyncIterator[tuple[Any, Any]]:
    """Gateways before the coordinator and before the verifier."""
    async with gateway(cluster.address) as first, gateway(cluster.verifiers[0].address) as second:
        yield first, second


def facts(complete: Any) -> tuple[Any, ...]:
    """All that is told of a choice and does not depend on what was cached or drafted."""
    matched = complete.WhichOneof("matched_stop")
    return (
        complete.index, list(complete.output_ids), complete.finish_reason, complete.prompt_tokens, complete.completion_tokens,
        None if matched is None else getattr(complete, matched), list(complete.output_logprobs.token_ids),
        [list(each.token_ids) for each in complete.output_logprobs.top_logprobs], list(complete.input_logprobs.token_ids),
        [list(each.token_ids) for each in complete.input_logprobs.top_logprobs],
    )  # fmt: skip


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(FREE, id="greedy"),
        pytest.param(SEEDED, id="seeded"),
        pytest.param({**SEEDED, "n": 3}, id="choices"),
        pytest.param({**FREE, "stop": ["\n\n", "return"]}, id="stop strings"),
        pytest.param({**FREE, "stop": ["\n"], "min_tokens": 6, "include_stop_str_in_output": True}, id="least"),
        pytest.param({**FREE, "stop_token_ids": [PROMPT[-1]], "ignore_eos": True}, id="stop tokens"),
        pytest.param({**FREE, "logprobs": 3}, id="log-probabilities"),
        pytest.param({**SEEDED, "n": 2, "prompt_logprobs": 3, "max_tokens": 1}, id="log-probabilities of the prompt"),
        pytest.param({**FREE, "regex": "return [a-z]{3,9}"}, id="expression"),
        pytest.param(
            {**SEEDED, "n": 2, "json_schema": '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}'},
            id="schema",
        ),
    ],
)
async def test_both_answer_alike_whatever_is_asked(edges: tuple[Any, Any], sampling: dict[str, Any]) -> None:
    """As tokens and in one piece, and as a text and streamed."""
    answers = [await answer(edge, request(PROMPT, **sampling)) for edge in edges]
    ours, theirs = (list(map(facts, completes)) for _, completes in answers)
    assert ours == theirs
    assert ours[0][1] or "stop_token_ids" in sampling, "the first token may be the one that stops"
    streamed = request(text="def add(a, b):\n", stream=True, **sampling)
    for edge in edges:
        chunks, _ = await answer(edge, streamed)
        for index in range(len(ours)):
            assert [t for chunk in chunks if chunk.index == index for t in chunk.token_ids] == ours[index][1]


async def test_the_verifier_chooses_a_drafter_of_its_roster(edges: tuple[Any, Any]) -> None:
    _, completes = await answer(edges[1], request(PROMPT, n=2, max_tokens=60, temperature=0.0))
    assert all(complete.spec_draft_tokens > complete.spec_accepted_tokens > 0 for complete in completes)


async def test_what_operators_ask_of_the_coordinator_every_verifier_does(
    edges: tuple[Any, Any], cluster: LocalCluster, profiles: Path
) -> None:
    coordinator, verifier = edges
    asked = request(PROMPT * 4, max_tokens=2)
    await answer(verifier, asked)
    _, (known,) = await answer(verifier, asked)
    assert known.cached_tokens > 0
    flushed = await coordinator.FlushCache(common_pb2.FlushCacheRequest(timeout_s=30))
    assert flushed.success and "cached pages were dropped" in flushed.message
    _, (unknown,) = await answer(verifier, asked)
    assert unknown.cached_tokens == 0
    began = await coordinator.StartProfile(common_pb2.StartProfileRequest())
    assert began.success
    await answer(coordinator, asked)
    ended = await coordinator.StopProfile(common_pb2.StopProfileRequest())
    assert ended.success and str(profiles) in ended.message
    with cluster.client() as client:
        names = [member.member_id for member in client.cluster().members if member.member_id in ended.message]
    assert len(names) == 1, "the sentence says which verifier it is"
    assert len(os.listdir(profiles)) == 1

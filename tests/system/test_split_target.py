"""The pocket target split over two processes, which torchrun starts, beside drafters of every kind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client, Options, Result
from specsplit.values import DrafterKind, TokenLogprob
from tests.support.drafting import POCKET_KINDS
from tests.support.grammars import SCHEMA
from tests.support.rounding import assert_same_log_probabilities
from tests.support.streamed import streamed
from tests.support.torchrun import forked_torchrun
from tests.system.conftest import SERIAL, as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = [list(range(40, 60)), list(range(300, 330))]
LONG_PROMPT = [7 * i % 1000 for i in range(300)]
LONG = 150
WAYS: dict[str, Options] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 2024},
    "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "seeded and penalised": {"temperature": 1.1, "seed": 5, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "held to a schema": {"json_schema": SCHEMA},
    "seeded and held to a schema": {"temperature": 0.9, "seed": 4, "json_schema": SCHEMA},
}
CASES = [(kind, way) for kind in ("none", *(kind.value for kind in POCKET_KINDS)) for way in WAYS]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """With a verifier of the whole target."""
    drafters = [kind.value for kind in POCKET_KINDS]
    with LocalCluster(POCKET, drafts_beside(POCKET), drafters=drafters, coordinator={"failover_s": 120}) as started:
        yield started


def written(client: Client, cases: list[tuple[str, str]]) -> list[Result]:
    """What comes of all cases, which are decoded together."""
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(write, client, place, *case) for place, case in enumerate(cases)]
        return [call.result(120) for call in calls]


def write(client: Client, place: int, kind: str, way: str) -> Result:
    options: Options = {"max_tokens": 12, "ignore_eos": True, "drafter": kind, "plan": SERIAL, **WAYS[way]}
    return client.generate(PROMPTS[place % len(PROMPTS)], timeout_s=120, **options)


def numbers(logprobs: Sequence[TokenLogprob]) -> list[list[float]]:
    return [[each.logprob, *(top.logprob for top in each.top)] for each in logprobs]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_split_target_writes_what_a_whole_one_does_with_any_drafter_and_a_stream_outlives_a_killed_follower(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    one, log = cluster.verifiers[0], tmp_path / "processes.log"
    serve = ["verifier", "--model", POCKET, "--tp-size", 2, "--coordinator", cluster.address]
    with cluster.client() as client:
        whole = [each.tokens for each in written(client, CASES)]
        long = client.generate(PROMPTS[0], max_tokens=LONG, ignore_eos=True, drafter="none").tokens
        prompt = client.generate(LONG_PROMPT, max_tokens=1, prompt_logprobs=3).prompt_logprobs
        there = len(client.cluster().members)
        with forked_torchrun(2, *serve, log=log) as split:
            as_soon_as(lambda: len(client.cluster().members) == there + 1, within_s=120)
            one.terminate()
            assert one.wait(30) == 0
            parts = written(client, CASES)
            assert [each.tokens for each in parts] == whole
            assert len({each.done.verifier for each in parts}) == 1
            accepted = {kind for (kind, _), each in zip(CASES, parts, strict=True) if each.speculation.accepted}
            assert accepted >= {kind.value for kind in POCKET_KINDS} - {DrafterKind.NGRAM.value}
            told = client.generate(LONG_PROMPT, max_tokens=1, prompt_logprobs=3).prompt_logprobs
            assert [each.token for each in told] == LONG_PROMPT[1:]
            assert_same_log_probabilities(torch.tensor(numbers(told)), torch.tensor(numbers(prompt)), 2048)
            tokens = streamed(client, PROMPTS[0], LONG, lambda: split.signal(1, signal.SIGKILL))
            assert tokens == long
            assert "rank 1 of 2 is lost" in split.output
            assert split.output.count("joined the cluster") == 2
            split.signal(1, signal.SIGTERM)
            assert write(client, 0, "none", "greedy").tokens == whole[0], "the leader still needs its follower"
            split.signal(0, signal.SIGTERM)
            assert split.wait() == 0, "a leader that is told to leave takes its follower with it, in good order"
            assert "terminate called" not in split.output

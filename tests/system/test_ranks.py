"""Two verifier ranks that share the pocket target, started by torchrun as users do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specsplit.cli.local import Child, LocalCluster
from specsplit.client import Client
from specsplit.requests import Delta, Done
from tests.support.grammars import SCHEMA
from tests.support.prompt_logprobs import assert_told, expected
from tests.support.torchrun import torchrun
from tests.system.conftest import as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
PROMPTS = (tuple(range(40, 60)), tuple(range(300, 330)))
SHORT, LONG, LONGEST = 16, 200, 480


@pytest.fixture(scope="module", autouse=True)
def all_forked() -> None:
    """None of them: these are started as users start them."""


@pytest.fixture
def coordinator() -> Iterator[str]:
    child = Child("coordinator", "coordinator", {"model": POCKET, "listen": "127.0.0.1:0", "failover_s": 120}, None)
    try:
        yield child.wait_listening(60)
    finally:
        child.process.kill()
        child.process.wait()


def members(client: Client) -> int:
    return len(client.cluster().members)


def plain() -> Any:
    """The target in transformers' own hands."""
    model: Any = LlamaForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def written(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    rows = torch.tensor([list(prompt)])
    made = model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=count, do_sample=False)
    return made[0, len(prompt) :].tolist()


def held(prompt: Sequence[int]) -> tuple[int, ...]:
    """What a verifier that is alone writes, held to the schema."""
    with LocalCluster(POCKET) as cluster, cluster.client() as client:
        return client.generate(prompt, max_tokens=LONG, json_schema=SCHEMA).tokens


def received(events: Iterable[object], begun: threading.Event) -> tuple[list[int], str]:
    """The tokens of a stream and who wrote the last of them; says when the first are there."""
    tokens, verifier = list[int](), ""
    for event in events:
        if isinstance(event, Delta):
            tokens += event.tokens
            begun.set()
        if isinstance(event, Done):
            verifier = event.verifier
    return tokens, verifier


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_serve_a_request_each_and_a_stream_outlives_a_killed_one_as_the_group_is_started_again(
    coordinator: str, tmp_path: Path
) -> None:
    serve = ["verifier", "--model", POCKET, "--dp-size", 2, "--rank-timeout-s", 10, "--coordinator", coordinator]
    with Client(coordinator) as client, torchrun(2, *serve, log=tmp_path / "ranks.log") as group:
        model = plain()
        long = written(model, PROMPTS[0], LONG)
        short = written(model, PROMPTS[1], SHORT)
        as_soon_as(lambda: members(client) == 2, within_s=120)
        with ThreadPoolExecutor() as pool:
            begun = threading.Event()
            first = pool.submit(received, client.stream(PROMPTS[0], max_tokens=LONGEST, ignore_eos=True), begun)
            assert begun.wait(60)  # the second request is placed while the first one runs
            second = client.generate(PROMPTS[1], max_tokens=SHORT, ignore_eos=True)
            tokens, verifier = first.result(60)
        assert {verifier, second.done.verifier} == {member.member_id for member in client.cluster().members}
        assert (tokens[:LONG], list(second.tokens)) == (long, short)
        with ThreadPoolExecutor() as pool:
            asked: Any = {"max_tokens": LONG, "json_schema": SCHEMA}
            both = [pool.submit(client.generate, PROMPTS[0], **asked) for _ in range(2)]
            assert {each.result(60).tokens for each in both} == {held(PROMPTS[0])}, "on either rank"
        prompt = [7 * i % 1000 for i in range(300)]
        told = client.generate(prompt, max_tokens=1, prompt_logprobs=3).prompt_logprobs
        assert_told(told, expected(model, prompt), 3)
        tokens = []
        for event in client.stream(PROMPTS[0], max_tokens=LONG, ignore_eos=True):
            if isinstance(event, Delta):
                if not tokens:
                    group.signal(1, signal.SIGKILL)
                tokens += event.tokens
        assert tokens == long
        assert "rank 1 of 2 is lost" in group.output
        assert group.output.count("joined the cluster") == 4
        as_soon_as(lambda: members(client) == 2, within_s=120)
        group.signal(0, signal.SIGTERM)
        assert group.wait() == 0, "one that is told to leave takes the other with it, in good order"
        assert "terminate called" not in group.output

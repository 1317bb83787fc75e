"""A session that began elsewhere: its tokens so far come with it, and it goes on as it would have gone on there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specsplit.errors import InvalidRequest
from specsplit.sessions import DecodeRequest, Finished, Preempted, Tokens
from specsplit.values import FinishReason, Sampling, Stopping
from specsplit_verifier.edge.verifier import Verifier
from tests.support.toys import random_target
from tests.verifier.conftest import decode, verifier_over

PROMPT, NEW = (3, 7, 1, 3, 7, 1, 3), 12
ASKED = {
    "greedy": Sampling(),
    "seeded": Sampling(temperature=0.9, top_k=30, seed=11),
    "penalised": Sampling(repetition_penalty=1.2, frequency_penalty=0.9, presence_penalty=0.3),
    "seeded and penalised": Sampling(temperature=1.3, seed=12, repetition_penalty=1.4, frequency_penalty=1.1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("target"), 64)


@pytest.fixture
async def verifier(folder: Path) -> AsyncIterator[Verifier]:
    async with verifier_over(folder, kv_tokens=256) as verifier:
        yield verifier


def resumed(
    sampling: Sampling, earlier: list[int], stopping: Stopping | None = None, logprobs: int | None = None
) -> DecodeRequest:
    tokens = (*PROMPT, *earlier)
    return DecodeRequest("r", tokens, sampling, stopping or Stopping(NEW), logprobs=logprobs, committed=len(earlier))


async def logged(verifier: Verifier, request: DecodeRequest) -> list[tuple[int, float, list[int]]]:
    steps = [event async for event in verifier.decode(request) if isinstance(event, Tokens)]
    return [
        (each.token, round(each.logprob, 4), [top.token for top in each.top])
        for step in steps
        for each in step.logprobs
    ]


@pytest.mark.parametrize("how", ASKED)
async def test_from_every_position_the_rest_is_what_it_would_have_been(verifier: Verifier, how: str) -> None:
    whole, end = await decode(verifier, resumed(ASKED[how], []))
    logprobs = await logged(verifier, resumed(ASKED[how], [], logprobs=2))
    assert len(whole) == NEW
    for position in range(1, NEW):
        rest, ended = await decode(verifier, resumed(ASKED[how], whole[:position]))
        assert rest == whole[position:], position
        assert ended.reason is end.reason
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (len(PROMPT), NEW)
        assert ended.usage.cached_prompt_tokens <= len(PROMPT)
        assert ended.speculation.steps == NEW - position
        assert await logged(verifier, resumed(ASKED[how], whole[:position], logprobs=2)) == logprobs[position:]


async def test_a_stop_token_ends_it_where_it_would_have(verifier: Verifier) -> None:
    whole, _ = await decode(verifier, resumed(ASKED["seeded"], []))
    stop = next(token for token in whole[6:] if token not in whole[:6])
    stopping = Stopping(NEW, (stop,))
    expected, end = await decode(verifier, resumed(ASKED["seeded"], [], stopping))
    for position in range(1, len(expected) + 1):
        rest, ended = await decode(verifier, resumed(ASKED["seeded"], expected[:position], stopping))
        assert (rest, ended.reason, ended.stop_token) == (expected[position:], end.reason, stop)


async def test_where_the_pool_holds_no_more_the_session_ends_with_length(folder: Path) -> None:
    async with verifier_over(folder, kv_tokens=64) as small:
        earlier = [1] * 60
        tokens, end = await decode(small, resumed(Sampling(), earlier, Stopping()))
    assert (tokens, end.reason, end.usage.completion_tokens) == ([], FinishReason.LENGTH, 60)


@pytest.mark.parametrize(("committed", "most"), [(7, 20), (9, 20), (4, 4), (5, 4)])
def test_what_cannot_have_been_committed_is_refused(committed: int, most: int) -> None:
    with pytest.raises(InvalidRequest, match="committed: is"):
        DecodeRequest("r", PROMPT, stopping=Stopping(most), committed=committed)


async def test_who_is_preempted_is_told(folder: Path) -> None:
    """Two sessions whose texts do not fit side by side."""
    async with verifier_over(folder, kv_tokens=64) as small:
        first, second = (small.decode(DecodeRequest(name, PROMPT, stopping=Stopping(40))) for name in "ab")
        events = {"a": list[object](), "b": list[object]()}

        async def read(name: str, session: AsyncIterator[object]) -> None:
            async for event in session:
                events[name].append(event)

        await asyncio.gather(read("a", first), read("b", second))
    told = [event for name in "ab" for event in events[name] if isinstance(event, Preempted)]
    assert told
    assert all(isinstance(events[name][-1], Finished) for name in "ab")

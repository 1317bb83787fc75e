"""Log-probabilities of a prompt on their way from verifiers to a caller: once, whole, with texts, and before any output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from specsplit.errors import Incompatible, Unavailable
from specsplit.requests import Delta, Done, TokenPrompt
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.values import FinishReason, PromptLogprobs, SpeculationStatistics, TokenLogprob, Usage
from tests.support.engine_protocol import answer, gateway, request

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
PROMPT = tuple(range(40, 60))


def piece(prompt: Sequence[int], first: int, end: int, most: int = 1) -> PromptLogprobs:
    tokens = tuple(prompt[first:end])
    tops = tuple(TokenLogprob(token, -0.25) for token in range(50, 50 + most))
    logprobs = tuple(TokenLogprob(token, -float(token), tops) for token in (tokens if first else tokens[1:]))
    return PromptLogprobs(first, tokens, logprobs)


def telling(size: int, lost_after: int | None = None, tokens: Sequence[int] = (5, 6)) -> Script:
    """Tells what is asked for of the prompt in pieces of `size`, then says tokens; lost behind so many tokens of the prompt."""

    async def script(asked: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        told = asked.prompt_tokens if asked.prompt_logprobs is not None else 0
        for first in range(0, told, size):
            if lost_after is not None and first >= lost_after:
                raise Unavailable("killed")
            yield piece(asked.tokens, first, min(first + size, told), asked.prompt_logprobs or 0)
        left = tokens[asked.committed :]
        for number, token in enumerate(left, start=1):
            yield Tokens((token,), 0, SpeculationStatistics(steps=number))
            if lost_after is not None:
                raise Unavailable("killed")
        usage = Usage(asked.prompt_tokens, len(tokens))
        yield Finished(FinishReason.LENGTH, None, usage, SpeculationStatistics(steps=len(left)))

    return script


def in_turn(*scripts: Script) -> Script:
    """The first session follows the first, whichever verifier has it, and so on."""
    left = iter(scripts)

    def script(asked: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        return next(left)(asked)

    return script


def told(events: Sequence[object]) -> list[TokenLogprob]:
    return [each for event in events if isinstance(event, Delta) and event.prompt for each in event.prompt.logprobs]


async def test_they_come_in_pieces_with_texts_before_the_first_token(cluster: Cluster) -> None:
    await cluster.add_verifier(telling(7))
    stream = cluster.client.stream(PROMPT, prompt_logprobs=2, stream_interval=2)
    events = [event async for event in stream]
    pieces = [event.prompt for event in events[:3] if isinstance(event, Delta)]
    assert [(each.first, each.tokens) for each in pieces if each] == [
        (0, PROMPT[:7]),
        (7, PROMPT[7:14]),
        (14, PROMPT[14:]),
    ]
    for each, token in zip(told(events), PROMPT[1:], strict=True):
        assert (each.token, each.logprob, each.text) == (token, -float(token), cluster.tokenizer.piece(token))
        assert [(top.token, top.text) for top in each.top] == [(t, cluster.tokenizer.piece(t)) for t in (50, 51)]
    rest = events[3:]
    assert isinstance(rest[0], Delta) and rest[0].tokens == (5,), "the first is not held back"
    assert isinstance(rest[-1], Done)


async def test_a_verifier_that_is_lost_while_it_tells_leaves_no_gap_and_nothing_comes_twice(cluster: Cluster) -> None:
    script = in_turn(telling(6, lost_after=12), telling(5))
    verifiers = [await cluster.add_verifier(script, name) for name in ("v1", "v2")]
    events = [event async for event in cluster.client.stream(PROMPT, prompt_logprobs=1)]
    assert [each.prompt_logprobs for verifier in verifiers for each in verifier.asked] == [1, 1]
    pieces = [event.prompt for event in events if isinstance(event, Delta) and event.prompt]
    assert [each.first for each in pieces] == [0, 6, 12, 15] and [len(each.tokens) for each in pieces] == [6, 6, 3, 5]
    assert [each.token for each in told(events)] == list(PROMPT[1:])


async def test_a_verifier_that_is_lost_behind_the_prompt_has_told_it(cluster: Cluster) -> None:
    script = in_turn(telling(8, lost_after=99), telling(8))
    verifiers = [await cluster.add_verifier(script, name) for name in ("v1", "v2")]
    result = await cluster.client.generate(PROMPT, prompt_logprobs=0)
    asked = sorted((each.committed, each.prompt_logprobs) for verifier in verifiers for each in verifier.asked)
    assert asked == [(0, 0), (1, None)]
    assert [each.token for each in result.prompt_logprobs] == list(PROMPT[1:]) and result.tokens == (5, 6)


async def test_of_several_choices_one_session_tells_it_and_all_results_have_it(cluster: Cluster) -> None:
    verifier = await cluster.add_verifier(telling(8))
    result = await cluster.client.generate(PROMPT, n=3, prompt_logprobs=0)
    assert sorted(str(each.prompt_logprobs) for each in verifier.asked) == ["0", "None", "None"]
    assert [len(choice.prompt_logprobs) for choice in result.choices] == [len(PROMPT) - 1] * 3


async def test_who_resumes_an_answer_has_been_told(cluster: Cluster) -> None:
    verifier = await cluster.add_verifier(telling(8))
    result = await cluster.client.generate(PROMPT, prompt_logprobs=3, resume_from=[5])
    assert [each.prompt_logprobs for each in verifier.asked] == [None]
    assert result.prompt_logprobs == () and result.tokens == (6,)


async def test_a_verifier_of_an_older_build_which_tells_nothing_is_named_as_such(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    with pytest.raises(Incompatible, match="0 of 20 tokens of the prompt: one of an older build tells none; update it"):
        await cluster.client.generate(PROMPT, prompt_logprobs=0)


async def test_a_caller_gets_more_of_a_prompt_than_may_be_left_unread(start_cluster: StartCluster) -> None:
    """What is told is some hundred times what may be unread, and comes at once; output that comes so would be given up."""
    cluster = await start_cluster(max_unread_bytes=2048)
    await cluster.add_verifier(telling(16))
    prompt = [40 + i % 50 for i in range(480)]
    events = [event async for event in cluster.client.stream(TokenPrompt(tuple(prompt)), prompt_logprobs=20)]
    assert [each.token for each in told(events)] == prompt[1:] and isinstance(events[-1], Done)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_gateway_gets_them_in_one_message_with_the_first_token_of_a_text_too(
    start_cluster: StartCluster, streamed: bool
) -> None:
    cluster = await start_cluster(max_unread_bytes=1024)
    await cluster.add_verifier(telling(4))
    prompt = cluster.tokens("def add(a, b):\n    return a + b\n" * 4)
    async with gateway(cluster.address) as stub:
        for asked in (request(prompt), request(text="def add(a, b):\n    return a + b\n" * 4)):
            asked.stream, asked.sampling_params.prompt_logprobs = streamed, 5
            chunks, (complete,) = await answer(stub, asked)
            message = (chunks[0] if streamed else complete).input_logprobs
            assert list(message.token_ids) == list(prompt)
            values = [each.value if each.HasField("value") else None for each in message.token_logprobs]
            assert values == [None, *(-float(token) for token in prompt[1:])]
            assert [list(each.token_ids) for each in message.top_logprobs] == [
                [],
                *[[50, 51, 52, 53, 54]] * (len(prompt) - 1),
            ]
            others = [*chunks[1:], complete] if streamed else []
            assert not any(each.HasField("input_logprobs") for each in others)


async def test_a_gateway_that_asks_for_more_than_a_message_holds_is_refused_by_name(
    start_cluster: StartCluster,
) -> None:
    cluster = await start_cluster(max_message_bytes=64 * 2**10)
    await cluster.add_verifier(telling(16))
    text = "def add(a, b):\n    return a + b\n" * 30
    async with gateway(cluster.address) as stub:
        for asked in (request(cluster.tokens(text)), request(text=text)):
            asked.sampling_params.prompt_logprobs = 20
            with pytest.raises(
                Exception, match=r"sampling_params.prompt_logprobs: is 20, which for .* max_message_bytes is"
            ):
                await answer(stub, asked)

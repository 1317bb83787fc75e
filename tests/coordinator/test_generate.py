"""Generate over real gRPC, against verifiers that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from specsplit.client import ChatMessage, ChatPrompt
from specsplit.client.options import WHOLE, make_request
from specsplit.errors import (
    ContextExceeded,
    DeadlineExceeded,
    Exhausted,
    InvalidRequest,
    SpecsplitError,
    Unavailable,
)
from specsplit.features import LAST, FeatureFormat, FeatureNeed
from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.rpc import dial
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.v1 import coordinator_pb2, coordinator_pb2_grpc
from specsplit.values import (
    Constraint,
    ConstraintKind,
    DrafterKind,
    FinishReason,
    PlanChanges,
    SpeculationStatistics,
    Usage,
)
from specsplit.wire.coordinator import generate_events, generate_to_wire
from specsplit_coordinator.members import session_stream
from specsplit_coordinator.members.member_state import KIND_ORDER
from specsplit_coordinator.requests import generation
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]
NEEDS = {
    DrafterKind.EAGLE: FeatureNeed((LAST,), 256),
    DrafterKind.EAGLE3: FeatureNeed((2, 3, 4), 256, FeatureFormat.FP8_E4M3, "ab" * 32, 256),
    DrafterKind.MULTI_LAYER_EAGLE: FeatureNeed((LAST,), 256, FeatureFormat.BFLOAT16),
}


async def test_text_goes_in_and_text_tokens_usage_and_statistics_come_out(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("    return a + b\n")
    verifier = await cluster.add_verifier(say(out[:3], out[3:]))
    result = await cluster.client.generate("def add(a, b):\n", max_tokens=40)
    assert result.text == "    return a + b\n"
    assert result.tokens == out
    assert result.usage == Usage(len(cluster.tokens("def add(a, b):\n")), len(out), 1)
    assert result.speculation.steps == 2
    assert result.done == Done("drawn", FinishReason.STOP, 0, result.usage, result.speculation, 0, "v1", "")
    assert verifier.asked[0].tokens == cluster.tokens("def add(a, b):\n")
    assert verifier.asked[0].stopping.max_tokens == 40


async def test_accepted_drafts_and_bonus_tokens_are_deltas_of_their_own(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("one two three four")
    await cluster.add_verifier(say(out[:3], out[3:4], reason=FinishReason.LENGTH, stop_token=None))
    events = [event async for event in cluster.client.stream("x")]
    sizes = [(e.num_correct_drafts, len(e.tokens)) for e in events if isinstance(e, Delta)]
    assert sizes == [(2, 2), (0, 1), (0, 1)]
    assert isinstance(events[-1], Done)
    assert (events[-1].reason, events[-1].matched_stop) == (FinishReason.LENGTH, None)


async def test_chat_and_token_prompts_reach_the_verifier_as_tokens(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    await cluster.client.generate(ChatPrompt((ChatMessage("user", "add"),)))
    await cluster.client.generate([7, 8, 9])
    assert [tuple(request.tokens) for request in verifier.asked] == [cluster.tokens("# add\n"), (7, 8, 9)]


async def test_the_seed_is_drawn_when_it_matters_and_always_returned(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    drawn = await cluster.client.generate("x", temperature=0.8)
    given = await cluster.client.generate("x", temperature=0.8, seed=2**64 - 1)
    zero = await cluster.client.generate("x", temperature=0.8, seed=0)
    greedy = await cluster.client.generate("x", seed=5)
    assert [r.seed for r in (drawn, given, zero, greedy)] == [77, 2**64 - 1, 0, 5]
    assert [r.sampling.seed for r in verifier.asked] == [77, 2**64 - 1, 0, 5]


async def test_the_callers_request_id_plan_and_sampling_arrive_at_the_verifier(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    done = (
        await cluster.client.generate(
            "x", request_id="mine", temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, plan=PlanChanges(num_steps=2)
        )
    ).done
    request = verifier.asked[0]
    assert done.request_id == request.request_id == "mine"
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert (request.sampling.top_p, request.sampling.min_p) == (0.9, 0.1)
    assert request.plan == PlanChanges(num_steps=2)


async def test_a_stop_string_that_spans_tokens_ends_the_output_and_the_session(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("x = 1\n\ndef f():\n    pass\n")
    verifier = await cluster.add_verifier(say(out[:4], out[4:], then_wait=True))
    events = [event async for event in cluster.client.stream("#", stop=["\n\ndef"])]
    *deltas, done = events
    assert "".join(d.text for d in deltas if isinstance(d, Delta)) == "x = 1"
    assert isinstance(done, Done)
    assert (done.reason, done.matched_stop) == (FinishReason.STOP, "\n\ndef")
    kept = sum(len(d.tokens) for d in deltas if isinstance(d, Delta))
    assert done.usage.completion_tokens == kept < len(out)
    assert done.usage.cached_prompt_tokens == 1, "told with every step, since the session's own end is not awaited"
    assert cluster.tokenizer.decode(out[:kept]).endswith("\n\ndef")
    assert done.speculation.steps == 2
    await eventually(lambda: verifier.open == 0)


async def test_what_might_have_become_a_stop_string_comes_out_at_the_end(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("x = 1\n\n")
    await cluster.add_verifier(say(out, reason=FinishReason.LENGTH, stop_token=None))
    result = await cluster.client.generate("#", stop=["\n\ndef"])
    assert (result.text, result.done.matched_stop) == ("x = 1\n\n", None)


async def test_no_delta_holds_half_a_character(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("s = '你好'")
    await cluster.add_verifier(say(*[(token,) for token in out]))
    pieces = [e.text async for e in cluster.client.stream("#") if isinstance(e, Delta)]
    assert "".join(pieces) == "s = '你好'"
    assert all("\ufffd" not in piece for piece in pieces)


async def test_drafters_of_every_kind_share_a_cluster_and_each_request_chooses(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    for kind in reversed(KIND_ORDER):
        await cluster.add_drafter(kind, f"a-{kind.value}", NEEDS.get(kind))
    wishes = [None, *KIND_ORDER]
    names = [(await cluster.client.generate("x", drafter=wish)).done.drafter for wish in [*wishes, "none"]]
    assert names == ["a-eagle3", *(f"a-{kind.value}" for kind in KIND_ORDER), ""]
    *sent, last = [request.drafter for request in verifier.asked]
    assert [each and each.member_id for each in sent] == names[:-1] and last is None
    assert [each and each.features for each in sent] == [
        NEEDS.get(DrafterKind(wish or "eagle3"), FeatureNeed()) for wish in wishes
    ]
    assert [request.any_drafter for request in verifier.asked] == [wish is None for wish in [*wishes, "none"]]


async def test_drafter_wishes_that_cannot_be_met_are_refused(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    known = "eagle3, dflash, dspark, multi_layer_eagle, eagle, standalone, ngram, none"
    with pytest.raises(InvalidRequest, match=f"drafter: is 'eagle9', expected one of {known}"):
        await cluster.client.generate("x", drafter="eagle9")
    with pytest.raises(Unavailable, match="the cluster has no drafters"):
        await cluster.client.generate("x", drafter="ngram")
    await cluster.add_drafter(DrafterKind.EAGLE, "e1", NEEDS[DrafterKind.EAGLE])
    with pytest.raises(Unavailable, match="no eagle3 drafter can serve this; the cluster has 1 eagle; ask for another"):
        await cluster.client.generate("x", drafter="eagle3")


@pytest.mark.parametrize(
    ("prompt", "options", "field", "problem"),
    [
        ("", {}, "text", "is empty"),
        ([], {}, "tokens.token_ids", "is empty"),
        ([1] * 512, {}, "tokens.token_ids", "is 512 tokens long; the context holds 512"),
        ([1, 2048], {}, "tokens.token_ids[1]", "is 2048, outside the vocabulary of 2048 tokens"),
        (ChatPrompt(()), {}, "chat.messages", "is empty"),
        ("x", {"stop": [""]}, "stop", "empty string"),
        ("x", {"stop_token_ids": [9999]}, "stopping.stop_token_ids[0]", "is 9999, outside the vocabulary"),
        ("x", {"logit_bias": {9999: 1.0}}, "sampling.logit_bias[9999]", "is outside the vocabulary"),
    ],
)
async def test_a_bad_request_is_refused_by_field_before_a_verifier_is_asked(
    cluster: Cluster, say: Say, prompt: str, options: dict[str, object], field: str, problem: str
) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    with pytest.raises(InvalidRequest) as caught:
        await cluster.client.generate(prompt, **options)  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert verifier.asked == []


async def test_the_longest_prompt_that_leaves_room_for_one_token_is_taken(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    assert (await cluster.client.generate([1] * 511)).usage.prompt_tokens == 511


async def test_a_constraint_is_the_verifiers_to_compile(cluster: Cluster, say: Say) -> None:
    """What one verifier cannot compile no other is asked for."""

    async def refuse(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        raise InvalidRequest("json_schema", "cannot be compiled: at #: Invalid type: text")
        yield  # pyright: ignore[reportUnreachable]

    refusing, other = await cluster.add_verifier(refuse), await cluster.add_verifier(refuse, "v2")
    with pytest.raises(InvalidRequest, match="json_schema: cannot be compiled: at #: Invalid type: text"):
        await cluster.client.generate("x", json_schema={"type": "text"})
    (asked,) = [*refusing.asked, *other.asked]
    assert asked.constraint == Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "text"}')


async def test_unknown_fields_are_refused_over_the_wire(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    async with dial(cluster.address) as channel:
        unknown = coordinator_pb2.GenerateRequest.FromString(
            coordinator_pb2.GenerateRequest(text="x").SerializeToString() + b"\xb8\x3e\x01"
        )
        call = coordinator_pb2_grpc.CoordinatorServiceStub(channel).Generate(unknown)
        with pytest.raises(Exception, match="field number 999 is unknown"):
            await anext(aiter(call))


async def test_nobody_to_decode_is_unavailable(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match="no verifier has joined"):
        await cluster.client.generate("x")
    with pytest.raises(Unavailable, match="no verifier has joined"):
        await cluster.client.model_info()


async def test_more_than_runs_and_waits_is_refused_with_a_hint(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(max_queue=1, retry_after_s=2.5)
    verifier = await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    tasks = [asyncio.create_task(cluster.client.generate("x")) for _ in range(2)]
    await eventually(lambda: cluster.coordinator.admission.queued == 1)
    with pytest.raises(Exhausted) as caught:
        await cluster.client.generate("x")
    assert caught.value.retry_after_s == 2.5
    seen = await cluster.client.cluster()
    assert (seen.queued, seen.running) == (1, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: cluster.coordinator.admission.running == 0 and verifier.open == 0)
    assert cluster.coordinator.admission.queued == 0


async def test_cancelling_at_any_moment_frees_everything(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("a b c d e f g h i j k l")

    async def slow(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        for number, token in enumerate(out, 1):
            await asyncio.sleep(0.002)
            yield Tokens((token,), 0, SpeculationStatistics(steps=number))
        await asyncio.Event().wait()

    verifier = await cluster.add_verifier(slow, max_sessions=2)
    for moment_ms in range(0, 40, 2):
        task = asyncio.create_task(cluster.client.generate("x"))
        await asyncio.sleep(moment_ms / 1000)
        task.cancel()
        await asyncio.wait({task})
    async with aclosing(cluster.client.stream("x")) as events:
        await anext(events)
    admission, registry = cluster.coordinator.admission, cluster.coordinator.registry
    await eventually(lambda: admission.running == 0 and verifier.open == 0 and registry.verifiers[0].running == 0)
    assert len(registry.verifiers[0].on_lost) <= 2


async def test_a_deadline_ends_the_request_everywhere_and_travels_to_the_verifier(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    timeout_s = 0.15
    while not verifier.timeouts:  # on a busy machine it may be over before the verifier is asked
        timeout_s *= 2
        with pytest.raises(DeadlineExceeded):
            await cluster.client.generate("x", timeout_s=timeout_s)
    assert verifier.timeouts[0] is not None
    assert verifier.timeouts[0] < timeout_s + 0.01, "gRPC counts in milliseconds and rounds up"
    await eventually(lambda: verifier.open == 0 and cluster.coordinator.admission.running == 0)


async def test_a_deadline_ends_waiting_too(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    running = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: cluster.coordinator.admission.running == 1)
    with pytest.raises(DeadlineExceeded):
        await cluster.client.generate("x", timeout_s=0.2)
    await eventually(lambda: cluster.coordinator.admission.queued == 0)
    running.cancel()
    await asyncio.wait({running})


async def test_sessions_spread_over_verifiers(cluster: Cluster, say: Say) -> None:
    one = await cluster.add_verifier(say((5,), then_wait=True), "v1")
    two = await cluster.add_verifier(say((5,), then_wait=True), "v2")
    tasks = [asyncio.create_task(cluster.client.generate("x")) for _ in range(4)]
    await eventually(lambda: (one.open, two.open) == (2, 2))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_the_verifier_refuses_reaches_the_caller(cluster: Cluster, say: Say) -> None:
    async def refuse(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        raise SpecsplitError("nothing")
        yield

    await cluster.add_verifier(refuse)
    with pytest.raises(SpecsplitError):
        await cluster.client.generate("x")
    await eventually(lambda: cluster.coordinator.admission.running == 0)


async def test_a_verifier_that_ends_a_session_without_a_word_is_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_stream, "FULL_BYTES", 1)  # so that it has a call of its own

    async def silent(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))

    await cluster.add_verifier(silent)
    with pytest.raises(SpecsplitError, match="without saying why"):
        await cluster.client.generate("x")


async def test_the_model_is_what_the_verifier_says(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    info = await cluster.client.model_info()
    assert (info.model, info.max_context, info.vocabulary) == ("toy", 512, cluster.tokenizer.vocabulary)
    assert info.takes_chat is cluster.tokenizer.takes_chat is True


async def test_a_text_too_long_to_tokenize_on_the_event_loop_is_refused_all_the_same(
    cluster: Cluster, say: Say
) -> None:
    await cluster.add_verifier(say((5,)))
    with pytest.raises(ContextExceeded, match="context holds 512"):
        await cluster.client.generate("x = 1\n" * 20_000)


async def test_draining_finishes_what_runs_and_refuses_what_is_new(start_cluster: StartCluster) -> None:
    cluster = await start_cluster()
    go_on = asyncio.Event()

    async def patient(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        await go_on.wait()
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        yield Finished(FinishReason.LENGTH, None, Usage(1, 1), SpeculationStatistics(steps=1))

    await cluster.add_verifier(patient)
    running = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: cluster.coordinator.admission.running == 1)
    draining = asyncio.create_task(cluster.coordinator.service.serve(signals=False))
    await asyncio.sleep(0)
    cluster.coordinator.service.leave()
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match="draining"):
        await cluster.client.generate("x")
    assert len((await cluster.client.cluster()).members) == 1
    go_on.set()
    assert (await running).tokens == (5,)
    assert await asyncio.wait_for(draining, 10) == 0


async def test_more_output_than_the_context_holds_is_refused_without_waiting_for_a_place(
    cluster: Cluster, say: Say
) -> None:
    await cluster.add_verifier(say((5,), then_wait=True), max_sessions=1)
    running = asyncio.create_task(cluster.client.generate("x"))
    await eventually(lambda: cluster.coordinator.admission.running == 1)
    with pytest.raises(ContextExceeded, match="is 4000000000, which with 1 prompt tokens exceeds the context of 512"):
        await cluster.client.generate("x", max_tokens=4_000_000_000)
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("short", [0, 256])
async def test_a_caller_that_has_some_of_its_answer_gets_the_rest(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    monkeypatch.setattr(generation, "SHORT_ANSWER", short)  # a longer one is read on a thread
    earlier = cluster.tokens("one two")
    verifier = await cluster.add_verifier(say(cluster.tokens(" three"), reason=FinishReason.LENGTH, stop_token=None))
    result = await cluster.client.generate("zero", seed=3, temperature=1.0, max_tokens=99, resume_from=earlier)
    assert (result.text, result.tokens) == (" three", cluster.tokens(" three"))
    assert result.usage.completion_tokens == len(earlier) + len(result.tokens)
    (asked,) = verifier.asked
    assert (asked.tokens, asked.committed) == ((*cluster.tokens("zero"), *earlier), len(earlier))


async def test_a_caller_that_has_all_of_its_answer_is_told_that_it_is_over(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,)))
    earlier = cluster.tokens("one two")
    result = await cluster.client.generate("zero", max_tokens=len(earlier), resume_from=earlier)
    assert (result.text, result.reason, result.done.verifier) == ("", FinishReason.LENGTH, "")
    result = await cluster.client.generate("zero", stop=["wo"], resume_from=earlier)
    assert (result.text, result.reason, result.done.matched_stop) == ("", FinishReason.STOP, "wo")
    assert verifier.asked == []


async def messages(cluster: Cluster, interval: int, **options: Any) -> list[list[GenerateEvent]]:
    """The events of an answer, by the message that they come in; an error ends them."""
    request = generate_to_wire(make_request("x", stream_interval=interval, **options))
    found: list[list[GenerateEvent]] = []
    async with dial(cluster.address) as channel:
        try:
            async for message in coordinator_pb2_grpc.CoordinatorServiceStub(channel).Generate(request):
                found.append(generate_events(message))
        except grpc.aio.AioRpcError:
            return found
    return found


def tokens_of(message: list[GenerateEvent]) -> list[int]:
    return [token for event in message if isinstance(event, Delta) for token in event.tokens]


async def test_output_is_held_back_until_there_is_as_much_as_the_caller_wants_at_once(
    cluster: Cluster, say: Say
) -> None:
    await cluster.add_verifier(say((5, 6), (7,), (8,), (9, 10), (11,)))
    held = await messages(cluster, 4)
    first, *others = map(tokens_of, held)
    assert first[:2] == [5, 6], "the first do not wait; what comes meanwhile goes along"
    assert all(len(each) >= 4 for each in others[:-1])
    alone = await messages(cluster, 1)
    for found in (held, alone):
        assert [token for each in found for token in tokens_of(each)] == [5, 6, 7, 8, 9, 10, 11]
        drafts = [
            event.tokens for each in found for event in each if isinstance(event, Delta) and event.num_correct_drafts
        ]
        assert drafts == [(5,), (9,)]


async def test_choices_hold_their_output_back_each_for_itself(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,), (6,), (7,), (8,)))
    found = await messages(cluster, 3, n=2, temperature=1.0)
    for index in range(2):
        own = [tokens_of(each) for each in found if each[-1].index == index]
        assert [token for each in own for token in each] == [5, 6, 7, 8]
        assert all(len(each) >= 3 for each in own[1:-1]), "at least; what comes meanwhile goes along"


async def test_what_was_held_back_comes_before_the_error_that_ends_the_answer(cluster: Cluster) -> None:
    async def script(request: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        for number in range(3):
            yield Tokens((5 + number,), 0, SpeculationStatistics(steps=number + 1))
        raise InvalidRequest("prompt", "is not to my taste")

    await cluster.add_verifier(script)
    assert [token for each in await messages(cluster, 9) for token in tokens_of(each)] == [5, 6, 7]


async def test_who_waits_for_the_whole_answer_has_verifiers_hold_it_back_unless_a_text_may_end_it(
    cluster: Cluster, say: Say
) -> None:
    verifier = await cluster.add_verifier(say((5, 6)))
    await cluster.client.generate("x")
    await cluster.client.generate("x", stop=["never"])
    await cluster.client.generate("x", stream_interval=2)
    assert [event async for event in cluster.client.stream("x")]
    assert [request.stream_interval for request in verifier.asked] == [WHOLE, 1, 2, 1]

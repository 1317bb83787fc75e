"""Both clients: typed results in, typed exceptions out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace

from specsplit.client import AsyncClient, ChatMessage, ChatPrompt, Client, TokenPrompt, make_request
from specsplit.errors import (
    Cancelled,
    DeadlineExceeded,
    Exhausted,
    Incompatible,
    InvalidRequest,
    SpecsplitError,
    Unavailable,
    Unsupported,
)
from specsplit.membership import PlanInForce, TracingInForce
from specsplit.requests import Delta, GenerateEvent, GenerateRequest, TextPrompt
from specsplit.values import Adaptive, Control, FinishReason, PlanChanges, Sampling, Stopping, TraceChanges
from tests.client.scripted import DONE, EVENTS, MEMBERS, MODEL, Scripted, breaking, serving


@pytest.fixture
def coordinator() -> Iterator[Scripted]:
    with serving() as scripted:
        yield scripted


@pytest.fixture
def client(coordinator: Scripted) -> Iterator[Client]:
    with Client(coordinator.address) as client:
        yield client


@pytest.fixture
async def async_client(coordinator: Scripted) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(coordinator.address) as client:
        yield client


def test_a_result_holds_the_whole(client: Client) -> None:
    result = client.generate("x")
    assert (result.text, result.tokens, result.done) == ("one two three", (11, 12, 13, 14), DONE)
    assert (result.reason, result.seed) == (FinishReason.STOP, 7)
    assert (result.usage, result.speculation) == (DONE.usage, DONE.speculation)
    assert result.speculation.accept_length == 2.0


async def test_the_async_result_is_the_same(client: Client, async_client: AsyncClient) -> None:
    assert await async_client.generate("x") == client.generate("x")


async def test_streams_yield_deltas_and_then_the_end(client: Client, async_client: AsyncClient) -> None:
    assert tuple(client.stream("x")) == EVENTS
    assert tuple([event async for event in async_client.stream("x")]) == EVENTS


async def test_model_and_cluster_are_values(client: Client, async_client: AsyncClient) -> None:
    assert client.model_info() == await async_client.model_info() == MODEL
    assert client.cluster() == await async_client.cluster()
    assert client.cluster().members == MEMBERS
    assert (client.cluster().queued, client.cluster().running) == (3, 2)


def test_every_option_reaches_the_coordinator(client: Client, coordinator: Scripted) -> None:
    client.generate(
        "x",
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        seed=0,
        logit_bias={9: -1.0, 3: 2.5},
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        stop="\n",
        stop_token_ids=[4],
        ignore_eos=True,
        min_tokens=2,
        include_stop_str_in_output=True,
        drafter="ngram",
        plan=PlanChanges(topk=2),
        logprobs=2,
        prompt_logprobs=3,
        n=1,
        stream_interval=7,
        request_id="mine",
    )
    assert coordinator.asked == [
        GenerateRequest(
            TextPrompt("x"),
            "mine",
            Sampling(0.5, 3, 0.9, 0.1, 0, ((3, 2.5), (9, -1.0)), 1.5, 0.5, -0.5),
            True,
            Stopping(5, (4,), True, 2),
            ("\n",),
            "ngram",
            PlanChanges(topk=2),
            2,
            prompt_logprobs=3,
            stream_interval=7,
            include_stop_str_in_output=True,
        )
    ]


def test_a_prompt_is_text_tokens_or_a_conversation() -> None:
    chat = ChatPrompt((ChatMessage("user", "hi"),))
    prompts = [make_request(each).prompt for each in ("x", [1, 2], chat)]
    assert prompts == [TextPrompt("x"), TokenPrompt((1, 2)), chat]
    assert not make_request("x").seeded


def test_a_wrong_value_is_refused_before_anything_is_sent(client: Client, coordinator: Scripted) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        client.generate("x", temperature=-1)
    with pytest.raises(InvalidRequest, match=r"temperature: is 1e\+39, expected a number in \[0, 10,000\]"):
        client.generate("x", temperature=1e39)
    with pytest.raises(InvalidRequest, match=r"n: is 0, expected 1\.\.16"):
        client.generate("x", n=0)
    with pytest.raises(InvalidRequest, match=r"logprobs: is -1, expected 0\.\.20 or nothing"):
        client.generate("x", logprobs=-1)
    with pytest.raises(InvalidRequest, match=r"logprobs: is 21, expected 0\.\.20 or nothing"):
        client.generate("x", logprobs=21)
    with pytest.raises(InvalidRequest, match=r"prompt_logprobs: is 21, expected 0\.\.20 or nothing"):
        client.generate("x", prompt_logprobs=21)
    with pytest.raises(InvalidRequest, match=r"prompt_logprobs: is 'all' .*, expected an integer or None"):
        client.generate("x", prompt_logprobs="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequest, match="prompt: has -1, expected whole numbers"):
        client.generate([-1])
    assert coordinator.asked == []


@pytest.mark.parametrize(
    "error",
    [
        Exhausted("full; try again in 1.5 s", 1.5),
        InvalidRequest("text", "is empty"),
        Unsupported("json_schema", "is not supported yet"),
        Unavailable("no verifier has joined"),
    ],
)
async def test_a_failure_is_the_exception_that_the_coordinator_raised(
    coordinator: Scripted, client: Client, async_client: AsyncClient, error: SpecsplitError
) -> None:
    def fail(request: GenerateRequest) -> Iterator[GenerateEvent]:
        yield EVENTS[0]
        raise error

    coordinator.script = fail
    with pytest.raises(type(error)) as caught:
        client.generate("x")
    assert str(error) in str(caught.value)
    if isinstance(error, Exhausted):
        assert isinstance(caught.value, Exhausted)
        assert caught.value.retry_after_s == 1.5
    with pytest.raises(type(error)):
        await async_client.generate("x")


def of_two(request: GenerateRequest) -> Iterator[GenerateEvent]:
    """Two choices, mixed."""
    for index in (1, 0, 1):
        yield Delta(f"{index}", (index,), index=index)
    yield replace(DONE, index=1, seed=8)
    yield replace(DONE, index=0)


async def test_the_choices_of_a_result_are_told_apart(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = of_two
    result = client.generate("x", n=2)
    assert [(choice.text, choice.tokens, choice.seed) for choice in result.choices] == [
        ("0", (0,), 7),
        ("11", (1, 1), 8),
    ]
    assert result.choices[0] is result and result.choices[1].others == ()
    assert await async_client.generate("x", n=2) == result


async def test_a_stream_that_lacks_a_choice_or_has_one_too_many_is_a_failure(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = of_two
    with pytest.raises(Unavailable, match="last message"):
        client.generate("x", n=3)
    with pytest.raises(Incompatible, match="sent choice 1 of a request for 1"):
        await async_client.generate("x")


async def test_a_stream_without_its_last_message_is_a_failure(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = lambda request: iter(EVENTS[:1])
    for broken in (
        failure_of(lambda: client.generate("x")),
        await failure_of_async(lambda: async_client.generate("x")),
    ):
        assert "without its last message" in str(broken) and broken.received == (11, 12)
    with pytest.raises(Unavailable, match="last message"):
        for _ in client.stream("x"):
            pass


class Endless:
    """A script that sends one delta and then waits until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, request: GenerateRequest) -> Iterator[GenerateEvent]:
        yield EVENTS[0]
        self.over.wait(10)


async def test_a_stream_that_breaks_has_the_tokens_that_came_and_says_how_to_get_the_rest(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = breaking
    said = "the coordinator is leaving; 4 tokens of the answer had come: the same request with resume_from set to them gets the rest"
    for broken in (
        failure_of(lambda: client.generate("x", resume_from=(9, 10))),
        await failure_of_async(lambda: async_client.generate("x", resume_from=(9, 10))),
    ):
        assert (str(broken), broken.received) == (said, (9, 10, 11, 12))
    unseeded = failure_of(lambda: client.generate("x", temperature=1.0))
    assert "no seed was given" in str(unseeded) and unseeded.received == ()
    assert str(failure_of(lambda: client.generate("x", n=2))) == "the coordinator is leaving", "not of one choice only"
    several = await failure_of_async(lambda: async_client.generate("x", n=2))
    assert several.__cause__ is not several and not isinstance(several.__cause__, Unavailable)


def failure_of(call: Callable[[], object]) -> Unavailable:
    with pytest.raises(Unavailable) as failed:
        call()
    return failed.value


async def failure_of_async(call: Callable[[], Awaitable[object]]) -> Unavailable:
    with pytest.raises(Unavailable) as failed:
        await call()
    return failed.value


async def test_leaving_a_stream_ends_the_request(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = script = Endless()
    stream = client.stream("x")
    assert next(stream) == EVENTS[0]
    stream.close()
    assert coordinator.ended.wait(5)
    coordinator.ended.clear()
    events = async_client.stream("x")
    assert await anext(events) == EVENTS[0]
    await events.aclose()
    assert coordinator.ended.wait(5)
    script.over.set()


async def test_a_timeout_is_a_deadline(coordinator: Scripted, client: Client, async_client: AsyncClient) -> None:
    coordinator.script = script = Endless()
    with pytest.raises(DeadlineExceeded):
        client.generate("x", timeout_s=0.2)
    with pytest.raises(DeadlineExceeded):
        await async_client.generate("x", timeout_s=0.2)
    script.over.set()


async def test_nobody_there_is_unavailable_and_named() -> None:
    with Client("127.0.0.1:9") as client, pytest.raises(Unavailable, match=r"coordinator 127\.0\.0\.1:9"):
        client.generate("x")
    async with AsyncClient("127.0.0.1:9") as async_client:
        with pytest.raises(Unavailable, match=r"coordinator 127\.0\.0\.1:9"):
            await async_client.cluster()


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        Client("nowhere")


@pytest.mark.parametrize(
    "option",
    [
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": 1.5},
        {"top_p": True},
        {"min_p": [0.1]},
        {"seed": "7"},
        {"max_tokens": 2.0},
        {"max_tokens": True},
        {"stop": 5},
        {"stop": ["a", 5]},
        {"stop_token_ids": 5},
        {"stop_token_ids": ["a"]},
        {"logit_bias": [3]},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {3: "a"}},
        {"repetition_penalty": "high"},
        {"presence_penalty": None},
        {"ignore_eos": "no"},
        {"drafter": 3},
        {"plan": {"topk": 2}},
        {"request_id": 9},
        {"temprature": 0.5},
    ],
    ids=str,
)
def test_an_unknown_option_or_one_of_the_wrong_type_is_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_request("x", **option)
    assert caught.value.field == next(iter(option))


def test_numbers_of_numpy_are_numbers(client: Client, coordinator: Scripted) -> None:
    client.generate(np.array([1, 2]), max_tokens=np.int64(3), temperature=np.float32(0.5), stop_token_ids=np.array([4]))  # pyright: ignore[reportArgumentType]
    (request,) = coordinator.asked
    assert (request.prompt, request.sampling.temperature) == (TokenPrompt((1, 2)), 0.5)
    assert (request.stopping.max_tokens, request.stopping.stop_token_ids) == (3, (4,))


@pytest.mark.parametrize("prompt", [5, None, b"bytes", 1.5])
def test_a_prompt_of_the_wrong_type_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt: is"):
        make_request(prompt)


@pytest.mark.parametrize("timeout_s", ["5", -1, float("nan"), float("inf"), True])
async def test_a_timeout_that_is_none_is_refused_by_every_call(
    client: Client, async_client: AsyncClient, timeout_s: Any
) -> None:
    for call in (client.model_info, client.cluster, client.wait_until_serving):
        with pytest.raises(InvalidRequest, match="timeout_s: is"):
            call(timeout_s)
    for async_call in (async_client.model_info, async_client.cluster, async_client.wait_until_serving):
        with pytest.raises(InvalidRequest, match="timeout_s: is"):
            await async_call(timeout_s)
    with pytest.raises(InvalidRequest, match="timeout_s: is"):
        client.generate("x", timeout_s=timeout_s)
    with pytest.raises(InvalidRequest, match="timeout_s: is"):
        await async_client.generate("x", timeout_s=timeout_s)


async def test_a_closed_client_is_unavailable(client: Client, async_client: AsyncClient) -> None:
    client.close()
    await async_client.close()
    for call in (client.model_info, client.cluster, lambda: client.generate("x"), lambda: client.wait_until_serving(1)):
        with pytest.raises(Unavailable, match="closed"):
            call()
    for async_call in (
        async_client.model_info,
        async_client.cluster,
        lambda: async_client.generate("x"),
        lambda: async_client.wait_until_serving(1),
    ):
        with pytest.raises(Unavailable, match="closed"):
            await async_call()


async def test_closing_a_client_ends_its_running_requests_with_cancelled(
    coordinator: Scripted, client: Client, async_client: AsyncClient
) -> None:
    coordinator.script = script = Endless()
    stream, events = client.stream("x"), async_client.stream("x")
    assert next(stream) == await anext(events) == EVENTS[0]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.05)
    client.close()
    await async_client.close()
    with pytest.raises(Cancelled):
        next(stream)
    with pytest.raises(Cancelled, match="closed"):
        await waiting
    script.over.set()


@pytest.mark.parametrize("listens", [False, True])
async def test_closing_a_client_ends_its_waiting_for_a_coordinator_with_an_error_that_says_so(
    coordinator: Scripted, listens: bool
) -> None:
    coordinator.loads()
    address = coordinator.address if listens else "127.0.0.1:9"
    client, async_client = Client(address), AsyncClient(address)
    waiting = [
        asyncio.create_task(asyncio.to_thread(client.wait_until_serving, 20)),
        asyncio.create_task(async_client.wait_until_serving(20)),
    ]
    await asyncio.sleep(0.2)
    client.close()
    await async_client.close()
    for each in waiting:
        with pytest.raises(
            (Cancelled, Unavailable), match=r"(?i)closed"
        ):  # the latter if it was closed before the first try
            await asyncio.wait_for(each, 10)


async def test_a_cancelled_task_stays_cancelled(coordinator: Scripted, async_client: AsyncClient) -> None:
    coordinator.script = script = Endless()
    task = asyncio.create_task(async_client.generate("x"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    script.over.set()


async def test_both_clients_wait_until_the_coordinator_serves(client: Client, async_client: AsyncClient) -> None:
    client.wait_until_serving(5)
    await async_client.wait_until_serving(5)
    with Client("127.0.0.1:9") as nobody, pytest.raises(DeadlineExceeded):
        nobody.wait_until_serving(0.2)


async def test_a_change_of_the_plan_or_of_what_is_traced_is_sent_and_answered(
    client: Client, async_client: AsyncClient, coordinator: Scripted
) -> None:
    plan, tracing = PlanChanges(num_steps=0), TraceChanges(level=3, modules=("drafter",))
    control = Control(Adaptive.GOODPUT, 32)
    assert client.set_plan(plan, control) == await async_client.set_plan(plan, control) == PlanInForce(1, plan, control)
    assert client.set_tracing(tracing) == await async_client.set_tracing(tracing) == TracingInForce(2, tracing)
    assert client.plan() == await async_client.plan() == PlanInForce(1, plan, control)
    assert client.tracing() == await async_client.tracing() == TracingInForce(2, tracing)
    assert client.set_plan(reset=True).changes == PlanChanges()
    assert (await async_client.set_tracing(reset=True)).changes == TraceChanges()
    given = [(plan, control, False)] * 2 + [(tracing, False)] * 2
    assert coordinator.ordered == [*given, (PlanChanges(), Control(), True), (TraceChanges(), True)]


async def test_a_request_takes_the_trace_of_the_current_span_along_and_no_other_has_one(
    client: Client, async_client: AsyncClient, coordinator: Scripted
) -> None:
    context = trace.SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        client.generate("x")
        await async_client.generate("x")
    client.generate("x")
    await async_client.generate("x")
    traceparent = f"00-{0xAB:032x}-{0xCD:016x}-01"
    assert [headers.get("traceparent") for headers in coordinator.headers] == [traceparent, traceparent, None, None]


@pytest.mark.parametrize("call", ["plan", "tracing", "set_plan", "set_tracing"])
async def test_a_question_or_a_change_that_finds_nobody_is_a_typed_failure(call: str) -> None:
    with Client("127.0.0.1:9") as client, pytest.raises(Unavailable, match=r"coordinator 127\.0\.0\.1:9"):
        getattr(client, call)()
    async with AsyncClient("127.0.0.1:9") as client:
        with pytest.raises(Unavailable, match=r"coordinator 127\.0\.0\.1:9"):
            await getattr(client, call)()

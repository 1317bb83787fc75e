"""The package openai, unmodified: what it gets through the gateway is what our own client gets."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from specsplit.cli.gateway import Gateway
from specsplit.cli.local import LocalCluster
from specsplit.client import ChatMessage, ChatPrompt, Client

if TYPE_CHECKING:
    import openai

PROMPT = "def add(a, b):\n"
CHAT: list[Any] = [{"role": "user", "content": "add two numbers"}]
OWN_CHAT = ChatPrompt((ChatMessage("user", "add two numbers"),))
GREEDY: dict[str, Any] = {"temperature": 0}
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.3}
WAYS = [pytest.param(GREEDY, id="greedy"), pytest.param(SEEDED, id="seeded")]


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=gateway.url, api_key="nobody asks", max_retries=0) as client:
        yield client


@pytest.fixture
async def asynchronous(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=gateway.url, api_key="nobody asks", max_retries=0) as client:
        yield client


def test_the_target_is_the_model_that_there_is(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["target"]


@pytest.mark.parametrize("sampling", WAYS)
def test_a_completion_is_the_text_that_our_own_client_gets(
    client: openai.OpenAI, own: Client, sampling: dict[str, Any]
) -> None:
    expected = own.generate(PROMPT, max_tokens=40, **sampling)
    whole = client.completions.create(model="target", prompt=PROMPT, max_tokens=40, **sampling)
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.done.reason.value)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == expected.usage.prompt_tokens
    assert whole.usage.completion_tokens == expected.usage.completion_tokens
    chunks = list(client.completions.create(model="target", prompt=PROMPT, max_tokens=40, stream=True, **sampling))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text


@pytest.mark.parametrize("sampling", WAYS)
def test_a_conversation_is_rendered_and_answered_as_for_our_own_client(
    client: openai.OpenAI, own: Client, sampling: dict[str, Any]
) -> None:
    expected = own.generate(OWN_CHAT, max_tokens=40, **sampling)
    whole = client.chat.completions.create(model="target", messages=CHAT, max_tokens=40, **sampling)
    (choice,) = whole.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.done.reason.value
    chunks = list(
        client.chat.completions.create(
            model="target",
            messages=CHAT,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
            **sampling,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected.text
    for usage in (whole.usage, chunks[-1].usage):
        assert usage is not None
        assert usage.prompt_tokens == expected.usage.prompt_tokens
        assert usage.completion_tokens == expected.usage.completion_tokens


def test_usage_tells_which_drafts_were_accepted(client: openai.OpenAI, own: Client) -> None:
    expected = own.generate(OWN_CHAT, max_tokens=60).speculation
    usage = client.chat.completions.create(model="target", messages=CHAT, max_tokens=60, **GREEDY).usage
    assert usage is not None and usage.completion_tokens_details is not None
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens is not None and details.rejected_prediction_tokens is not None
    assert expected.accepted > 0 and details.accepted_prediction_tokens > 0


def test_choices_are_those_of_the_same_seed(client: openai.OpenAI, own: Client) -> None:
    expected = own.generate(PROMPT, max_tokens=20, n=3, temperature=1.0, seed=5)
    whole = client.completions.create(model="target", prompt=PROMPT, max_tokens=20, n=3, temperature=1.0, seed=5)
    assert [choice.text for choice in sorted(whole.choices, key=lambda each: each.index)] == [
        choice.text for choice in expected.choices
    ]
    streamed = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(
        model="target", prompt=PROMPT, max_tokens=20, n=3, temperature=1.0, seed=5, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == [choice.text for choice in expected.choices]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, own: Client) -> None:
    free = own.generate(PROMPT, max_tokens=40).text
    stop = free[9:14]
    expected = own.generate(PROMPT, max_tokens=40, stop=[stop])
    assert expected.text == free[: free.index(stop)]
    whole = client.completions.create(model="target", prompt=PROMPT, max_tokens=40, stop=[stop], **GREEDY)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (expected.text, "stop")
    chunks = client.completions.create(model="target", prompt=PROMPT, max_tokens=40, stop=stop, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text


def test_nothing_ends_a_completion_before_its_least_number_of_tokens(client: openai.OpenAI, own: Client) -> None:
    free = own.generate(PROMPT, max_tokens=40)
    stop, ends = free.text[9:14], [free.tokens[3]]
    wish: dict[str, Any] = {"max_tokens": 40, "min_tokens": 12, "stop_token_ids": ends}
    expected = own.generate(PROMPT, stop=[stop], **wish)
    assert expected.usage.completion_tokens >= 12
    whole = client.completions.create(
        model="target", prompt=PROMPT, max_tokens=40, stop=[stop], extra_body=wish, temperature=0
    )
    assert whole.usage is not None
    assert whole.usage.completion_tokens == expected.usage.completion_tokens


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_log_probabilities_are_the_targets_own(client: openai.OpenAI, own: Client) -> None:
    expected = own.generate(OWN_CHAT, max_tokens=12, logprobs=2)
    answer = client.chat.completions.create(
        model="target", messages=CHAT, max_tokens=12, logprobs=True, top_logprobs=2, **GREEDY
    )
    told = answer.choices[0].logprobs
    assert told is not None and told.content is not None
    # The forwards of two requests may be batched differently, and round differently.
    assert [each.logprob for each in told.content] == pytest.approx(
        [each.logprob for each in expected.logprobs], abs=1e-4
    )
    for mine, ours in zip(told.content, expected.logprobs, strict=True):
        assert [top.logprob for top in mine.top_logprobs] == pytest.approx([top.logprob for top in ours.top], abs=1e-4)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n": 99}, r"n: is 99, expected 1\.\.16"),
        ({"max_tokens": 100_000}, "max_tokens: is 100000, which with .* exceeds the context"),
        ({"seed": -5}, r"sampling_params\.seed: is -5, expected none below 0"),
        (
            {"extra_body": {"stop_token_ids": [99_999]}},
            r"stopping\.stop_token_ids\[0\]: is 99999, outside the vocabulary",
        ),
    ],
)
def test_what_we_refuse_is_status_400_with_our_sentence(
    client: openai.OpenAI, wrong: dict[str, Any], sentence: str
) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match=sentence) as caught:
        client.completions.create(**{"model": "target", "prompt": PROMPT, "max_tokens": 4, **wrong})
    assert caught.value.status_code == 400


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "arguments": {"type": "integer"}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def test_an_answer_is_held_to_a_schema(client: openai.OpenAI, own: Client) -> None:
    expected = own.generate(OWN_CHAT, max_tokens=60, json_schema=SCHEMA)
    held: Any = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA, "strict": True}}
    whole = client.chat.completions.create(model="target", messages=CHAT, max_tokens=60, response_format=held, **GREEDY)
    (choice,) = whole.choices
    assert choice.message.content == expected.text and choice.finish_reason == "stop"
    assert {*json.loads(expected.text)} == {"name", "arguments"}


def test_an_answer_is_parsed_as_the_caller_declares_it(client: openai.OpenAI) -> None:
    from pydantic import BaseModel, ConfigDict, Field

    class Function(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str = Field(max_length=20)
        arguments: int

    answer = client.chat.completions.parse(
        model="target", messages=CHAT, max_tokens=60, response_format=Function, **GREEDY
    )
    assert isinstance(answer.choices[0].message.parsed, Function)


def test_an_answer_is_an_object(client: openai.OpenAI, own: Client) -> None:
    expected = own.generate(OWN_CHAT, max_tokens=30, json_object=True)
    answer = client.chat.completions.create(
        model="target", messages=CHAT, max_tokens=30, response_format={"type": "json_object"}, **GREEDY
    )
    assert answer.choices[0].message.content == expected.text and expected.text.startswith("{")


def test_a_tool_that_has_to_be_called_is_called_with_what_it_takes(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "count", "parameters": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="target", messages=CHAT, max_tokens=80, tools=[tool], tool_choice="required", **GREEDY
    )
    (call, *_) = answer.choices[0].message.tool_calls or []
    assert call.function.name == "count" and {*json.loads(call.function.arguments)} == {"name", "arguments"}


def test_a_schema_that_cannot_be_compiled_is_status_400_with_its_place(client: openai.OpenAI) -> None:
    import openai

    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"type": "z"}}}}}
    for _ in range(15):
        with pytest.raises(openai.BadRequestError, match="json_schema: cannot be compiled: at #/properties/a: "):
            client.chat.completions.create(model="target", messages=CHAT, response_format=wrong)
    assert client.completions.create(model="target", prompt=PROMPT, max_tokens=2).choices[0].text


def test_another_model_is_not_there(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt=PROMPT)


async def test_many_requests_at_once_by_the_asynchronous_client(asynchronous: openai.AsyncOpenAI, own: Client) -> None:
    expected = await asyncio.to_thread(own.generate, OWN_CHAT, max_tokens=24)

    async def whole() -> str | None:
        answer = await asynchronous.chat.completions.create(model="target", messages=CHAT, max_tokens=24, **GREEDY)
        return answer.choices[0].message.content

    async def streamed() -> str:
        stream = await asynchronous.chat.completions.create(
            model="target", messages=CHAT, max_tokens=24, stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    answers = await asyncio.gather(*(call() for _ in range(3) for call in (whole, streamed)))
    assert answers == [expected.text] * 6


async def test_a_caller_who_leaves_ends_his_request(asynchronous: openai.AsyncOpenAI, cluster: LocalCluster) -> None:
    stream = await asynchronous.completions.create(
        model="target", prompt=PROMPT, max_tokens=450, stream=True, **GREEDY, extra_body={"ignore_eos": True}
    )
    await anext(aiter(stream))
    await stream.close()
    async with cluster.async_client() as own, asyncio.timeout(30):
        while (await own.cluster()).running:
            await asyncio.sleep(0.05)

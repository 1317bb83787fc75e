"""langchain-openai and litellm: what they get through the gateway is what our own client gets."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from specsplit.cli.gateway import Gateway
from specsplit.client import ChatMessage, ChatPrompt, Client

# Importing either takes seconds of a machine with nothing else to do.
pytestmark = pytest.mark.timeout(300)

QUESTION, PROMPT = "add two numbers", "def add(a, b):\n"
OWN_QUESTION = ChatPrompt((ChatMessage("user", QUESTION),))


class Count(BaseModel):
    """Count something."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    number: int


@pytest.fixture
def langchain(gateway: Gateway) -> dict[str, Any]:
    """What its models are made of."""
    return {"base_url": gateway.url, "api_key": "nobody asks", "model": "target", "temperature": 0, "max_retries": 0}


def test_langchain_gets_a_conversation_and_a_completion_whole_and_streamed(
    langchain: dict[str, Any], own: Client
) -> None:
    from langchain_openai import ChatOpenAI, OpenAI

    expected, chat = own.generate(OWN_QUESTION, max_tokens=24), ChatOpenAI(**langchain, max_tokens=24)
    answer = chat.invoke(QUESTION)
    assert answer.content == expected.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == expected.usage.completion_tokens
    assert "".join(str(chunk.content) for chunk in chat.stream(QUESTION)) == expected.text
    completion, own_text = OpenAI(**langchain, max_tokens=24), own.generate(PROMPT, max_tokens=24).text
    assert completion.invoke(PROMPT) == own_text
    assert "".join(completion.stream(PROMPT)) == own_text


async def test_langchain_asks_many_at_once(langchain: dict[str, Any], own: Client) -> None:
    from langchain_openai import ChatOpenAI

    expected = own.generate(OWN_QUESTION, max_tokens=24).text
    answers = await ChatOpenAI(**langchain, max_tokens=24).abatch([QUESTION] * 4)
    assert [answer.content for answer in answers] == [expected] * 4


def test_langchain_gets_objects_and_tool_calls_of_the_class_that_it_was_given(langchain: dict[str, Any]) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(**langchain, max_tokens=80)
    assert isinstance(chat.with_structured_output(Count, method="json_schema").invoke(QUESTION), Count)
    (call, *_) = chat.bind_tools([Count], tool_choice="required").invoke(QUESTION).tool_calls
    assert call["name"] == "Count" and Count.model_validate(call["args"])


@pytest.fixture
def litellm(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of each call. It would fetch a list of prices when it is imported."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return {"api_base": gateway.url, "api_key": "nobody asks", "temperature": 0, "max_tokens": 24, "num_retries": 0}


# Its answers are read into another of its classes than pydantic knows them as, which pydantic warns of.
@pytest.mark.filterwarnings("ignore::UserWarning:pydantic", "ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_litellm_gets_a_conversation_and_a_completion_whole_and_streamed(litellm: dict[str, Any], own: Client) -> None:
    from litellm import completion, text_completion

    asked: dict[str, Any] = {"model": "openai/target", "messages": [{"role": "user", "content": QUESTION}], **litellm}
    expected, answer = own.generate(OWN_QUESTION, max_tokens=24), completion(**asked)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    streamed = completion(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == expected.text
    own_text = own.generate(PROMPT, max_tokens=24).text
    assert text_completion(model="text-completion-openai/target", prompt=PROMPT, **litellm).choices[0].text == own_text


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_litellm_raises_its_error_of_a_model_that_is_not_there(litellm: dict[str, Any]) -> None:
    from litellm import completion
    from litellm.exceptions import NotFoundError

    with pytest.raises(NotFoundError):
        completion(model="openai/another", messages=[{"role": "user", "content": QUESTION}], **litellm)

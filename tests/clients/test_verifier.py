"""The gateway straight before a verifier, with no coordinator in the path of tokens: the same texts."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from specsplit.cli.gateway import Gateway
from specsplit.cli.local import LocalCluster
from specsplit.client import Client

if TYPE_CHECKING:
    import openai

PROMPT = "def add(a, b):\n"
WAYS = [
    pytest.param({"temperature": 0}, id="greedy"),
    pytest.param({"temperature": 0.8, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.3}, id="seeded"),
]


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[openai.OpenAI]:
    import openai

    with (
        Gateway(cluster.verifiers[0].address, "127.0.0.1:0") as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="nobody asks", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("sampling", WAYS)
def test_a_completion_is_the_text_that_the_coordinator_gives(
    client: openai.OpenAI, own: Client, sampling: dict[str, Any]
) -> None:
    expected = own.generate(PROMPT, max_tokens=40, **sampling)
    whole = client.completions.create(model="target", prompt=PROMPT, max_tokens=40, **sampling)
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.done.reason.value)
    assert whole.usage is not None and whole.usage.completion_tokens == expected.usage.completion_tokens
    chunks = list(client.completions.create(model="target", prompt=PROMPT, max_tokens=40, stream=True, **sampling))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected.text


def test_stop_strings_and_drafters_are_there_too(client: openai.OpenAI, own: Client) -> None:
    free = own.generate(PROMPT, max_tokens=40).text
    whole = client.completions.create(model="target", prompt=PROMPT, max_tokens=40, stop=[free[9:14]], temperature=0)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (free[: free.index(free[9:14])], "stop")
    chat = client.chat.completions.create(
        model="target", messages=[{"role": "user", "content": "add two numbers"}], max_tokens=60, temperature=0
    )
    assert chat.usage is not None and chat.usage.completion_tokens_details is not None
    assert (chat.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 0

"""What a long prompt costs: it is refused by its length, and read off the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specsplit.errors import ContextExceeded, InvalidRequest
from specsplit.generation.prompt import SHORT_TEXT, PromptReader
from specsplit.requests import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from specsplit.text.tokenizer import Tokenizer

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
CONTEXT = 512


class Watched(Tokenizer):
    """Notes what it is asked to encode or render, and on which thread."""

    texts: list[str]
    threads: set[str]

    def _ids(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        self.texts.append(text)
        self.threads.add(threading.current_thread().name)
        return super()._ids(text, add_special_tokens=add_special_tokens)

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        self.threads.add(threading.current_thread().name)
        return super().render_chat(messages)


@pytest.fixture
def tokenizer() -> Watched:
    watched = Watched.load(POCKET)
    assert isinstance(watched, Watched)
    watched.texts, watched.threads = [], set()
    return watched


@pytest.fixture
def reader(tokenizer: Watched) -> Iterator[PromptReader]:
    made = PromptReader(tokenizer)
    yield made
    made.close()


async def test_a_text_longer_than_any_that_fits_is_refused_before_it_is_tokenized(
    reader: PromptReader, tokenizer: Watched
) -> None:
    most = CONTEXT * tokenizer.longest_token
    with pytest.raises(ContextExceeded, match=rf"text: has {most + 1:,} characters; the context holds 512 tokens"):
        await reader.read(TextPrompt("x" * (most + 1)), CONTEXT)
    halves = ChatPrompt((ChatMessage("user", "x" * most), ChatMessage("user", "x")))
    with pytest.raises(InvalidRequest, match=r"chat.messages: has .* characters"):
        await reader.read(halves, CONTEXT)
    assert tokenizer.texts == []


async def test_of_a_text_that_is_far_too_long_only_the_beginning_is_tokenized(
    reader: PromptReader, tokenizer: Watched
) -> None:
    text = "x = 1 # word\n" * 1000
    with pytest.raises(
        InvalidRequest, match=r"text: has 13,000 characters, of which the first 4,096 are .* tokens already"
    ):
        await reader.read(TextPrompt(text), CONTEXT)
    assert [len(each) for each in tokenizer.texts] == [8 * CONTEXT]


async def test_a_text_of_long_tokens_is_read_to_its_end(reader: PromptReader, tokenizer: Watched) -> None:
    text = "-" * 32 * 300
    assert await reader.read(TextPrompt(text), CONTEXT) == tokenizer.encode(text)


async def test_no_text_of_as_many_tokens_as_fit_is_longer_than_the_bound(tokenizer: Watched) -> None:
    longest = max(range(tokenizer.vocabulary.size), key=lambda token: len(tokenizer.decode([token])))
    assert len(tokenizer.decode([longest])) <= tokenizer.longest_token


async def test_short_texts_are_read_at_once_and_long_ones_and_conversations_on_other_threads(
    reader: PromptReader, tokenizer: Watched
) -> None:
    here = threading.current_thread().name
    assert await reader.read(TokenPrompt((1, 2)), CONTEXT) == (1, 2)
    await reader.read(TextPrompt("a b"), CONTEXT)
    assert tokenizer.threads == {here}
    tokenizer.threads.clear()
    await reader.read(ChatPrompt((ChatMessage("user", "add"),)), CONTEXT)
    await reader.read(TextPrompt("-" * (SHORT_TEXT + 1)), CONTEXT)
    assert here not in tokenizer.threads

"""What is put before the target, and what of a file stands as its answer: examples as tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specsplit.errors import InvalidRequest, Unsupported
from specsplit.text.tokenizer import Tokenizer
from specsplit.training.examples import ASSISTANT, Example

Tokens = tuple[int, ...]
_PROMPT: Final = 64
"""Tokens of a text that the target goes on from."""
_LEAST: Final = 16
"""Tokens of the shortest text, and of the least room for an answer, that are worth a row."""


@dataclass(frozen=True)
class Prompt:
    """Tokens that the target reads, and those that are learnt behind them."""

    tokens: Tokens
    """At least one."""
    answer: Tokens = ()
    """Empty: the target writes it."""


@dataclass(frozen=True)
class Prompts:
    """All prompts of some examples, and what had to be left out of them."""

    prompts: tuple[Prompt, ...]
    too_long: int = 0
    """Prompts that leave no room for an answer within `max_length`."""
    too_short: int = 0
    """Texts, or last pieces of texts, of fewer tokens than are worth learning from."""
    cut: int = 0
    """Answers of the files that were cut at `max_length`."""


def make_prompts(
    examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, *, end: int | None, as_written: bool
) -> Prompts:
    """Make prompts of examples. A text longer than `max_length` becomes several, so that nothing of it is lost.

    end: the token that ends an answer; None: there is none. as_written: with the answers that stand in the files.
    Raises InvalidRequest, naming the place, for an example without an answer where one is needed, and Unsupported for conversations with
    a model that has no chat template.
    """
    prompts: list[Prompt] = []
    too_long = too_short = cut = 0
    for example in examples:
        for prompt in _of(example, tokenizer, max_length, end, as_written):
            whole = len(prompt.tokens) + len(prompt.answer)
            if len(prompt.tokens) + _LEAST > max_length:
                too_long += 1
            elif example.text and whole < _LEAST:
                too_short += 1
            else:
                cut += whole > max_length
                prompts.append(Prompt(prompt.tokens, prompt.answer[: max_length - len(prompt.tokens)]))
    return Prompts(tuple(prompts), too_long, too_short, cut)


def _of(example: Example, tokenizer: Tokenizer, max_length: int, end: int | None, as_written: bool) -> Iterator[Prompt]:
    if example.text:
        tokens = tokenizer.encode(example.text)
        for first in range(0, len(tokens), max_length):
            yield _of_text(tokens[first : first + max_length], as_written)
    elif example.messages:
        yield _of_messages(example, tokenizer, end, as_written)
    elif as_written:
        raise InvalidRequest(
            "--as-written", f"{example.place} is a prompt alone, without an answer; leave the option out"
        )
    else:
        yield Prompt(tokenizer.encode(example.prompt))


def _of_text(tokens: Tokens, as_written: bool) -> Prompt:
    if as_written:
        return Prompt(tokens[:1], tokens[1:])
    return Prompt(tokens[: min(_PROMPT, max(1, len(tokens) // 2))])


def _of_messages(example: Example, tokenizer: Tokenizer, end: int | None, as_written: bool) -> Prompt:
    if not tokenizer.takes_chat:
        raise Unsupported(
            "--data",
            f'{example.place} is a conversation, and the target has no chat template; bring {{"prompt": "..."}}',
        )
    role, content = example.messages[-1]
    answered = role == ASSISTANT
    asked = example.messages[:-1] if answered else example.messages
    tokens = tokenizer.encode_chat(asked)
    if not as_written:
        return Prompt(tokens)
    if not answered:
        raise InvalidRequest(
            "--as-written", f"{example.place} ends without an assistant's answer; leave the option out"
        )
    return Prompt(tokens, (*tokenizer.encode_rendered(content), *(() if end is None else (end,))))

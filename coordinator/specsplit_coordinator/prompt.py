"""From a request to the tokens that a verifier gets, with everything checked that can be checked before one is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specsplit.errors import InvalidRequest
from specsplit.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from specsplit.text.tokenizer import Tokenizer

_LONG_TEXT = 20_000
"""Characters above which tokenizing leaves the event loop's thread."""


async def tokens_of(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of the prompt. Raises InvalidRequest or Unsupported, naming the field."""
    if _length(prompt) > _LONG_TEXT:
        return await asyncio.to_thread(_tokens_of, prompt, tokenizer)
    return _tokens_of(prompt, tokenizer)


def check_prompt(prompt: Prompt, tokens: Sequence[int], vocab_size: int, max_context: int) -> None:
    """Raise InvalidRequest, with the numbers, for a prompt that is empty, too long or outside the vocabulary."""
    field = field_of(prompt)
    if not tokens:
        raise InvalidRequest(field, "is empty, expected at least one token")
    if len(tokens) >= max_context:
        problem = f"is {len(tokens)} tokens long; the context holds {max_context}, of which one must be left for output"
        raise InvalidRequest(field, problem)
    check_in_vocabulary(field, tokens, vocab_size)


def check_in_vocabulary(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest naming the first token outside the vocabulary."""
    for index, token in enumerate(tokens):
        if token >= vocab_size:
            raise InvalidRequest(f"{field}[{index}]", f"is {token}, outside the vocabulary of {vocab_size} tokens")


def field_of(prompt: Prompt) -> str:
    """The request's field that holds the prompt."""
    match prompt:
        case TextPrompt():
            return "text"
        case ChatPrompt():
            return "chat.messages"
        case TokenPrompt():
            return "tokens.token_ids"


def _tokens_of(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    match prompt:
        case TextPrompt():
            return tokenizer.encode(prompt.text)
        case ChatPrompt():
            return tokenizer.encode_chat([(turn.role, turn.content) for turn in prompt.messages])
        case TokenPrompt():
            return prompt.tokens


def _length(prompt: Prompt) -> int:
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(len(turn.content) for turn in prompt.messages)
        case TokenPrompt():
            return 0

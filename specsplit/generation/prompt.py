"""From a request to the tokens that a verifier gets, with everything checked that can be checked before one is asked.

A text is refused by its length before it is tokenized: tokenizing takes about 200 bytes of memory for each of its characters. Long
texts and conversations are read on threads of their own, a few at a time, so that neither the event loop nor the memory depends on
what one caller sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from specsplit.errors import ContextExceeded, InvalidRequest
from specsplit.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from specsplit.text.tokenizer import Tokenizer
from specsplit.wire.common import check_tokens

SHORT_TEXT: Final = 2_000
"""Characters up to which a plain text is tokenized on the event loop: about a millisecond."""
READERS: Final = 2
"""Prompts read at a time."""
_USUAL_TOKEN: Final = 8
"""Characters. A text with more of them per token is rare: so much of a long one is looked at first."""
_CUT: Final = 64
"""Tokens by which a text may seem longer than it is when it is cut off in the middle of a word."""

Made = TypeVar("Made")


class PromptReader:
    """Makes tokens of prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(READERS, "prompt")

    async def read(self, prompt: Prompt, max_context: int) -> tuple[int, ...]:
        """Token ids of the prompt. Raises InvalidRequest for one that is empty or outside the vocabulary.

        Raises ContextExceeded, with the numbers, for one that is too long.

        Raises Unsupported for a conversation if the model has no chat template.
        """
        _check_length(prompt, max_context * self.tokenizer.longest_token, max_context)
        if isinstance(prompt, TokenPrompt) or (isinstance(prompt, TextPrompt) and len(prompt.text) <= SHORT_TEXT):
            tokens = self._tokens_of(prompt, max_context)
        else:
            tokens = await self.aside(partial(self._tokens_of, prompt, max_context))
        check_prompt_tokens(field_of(prompt), tokens, self.tokenizer.vocabulary.size, max_context)
        return tokens

    async def aside(self, work: Callable[[], Made]) -> Made:
        """Do on one of the threads what would hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the threads, which finish what they have begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _tokens_of(self, prompt: Prompt, max_context: int) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt():
                return prompt.tokens
            case TextPrompt():
                self._check_beginning("text", prompt.text, max_context)
                return self.tokenizer.encode(prompt.text)
            case ChatPrompt():
                text = self.tokenizer.render_chat([(each.role, each.content) for each in prompt.messages])
                self._check_beginning("chat.messages", text, max_context)
                return self.tokenizer.encode_rendered(text)

    def _check_beginning(self, field: str, text: str, max_context: int) -> None:
        """Raise ContextExceeded for a text whose beginning alone is too long: one that cannot fit costs no more than one that does."""
        size = _USUAL_TOKEN * max_context
        while size < len(text):
            count = len(self.tokenizer.encode(text[:size]))
            if count > max_context + _CUT:
                problem = f"has {len(text):,} characters, of which the first {size:,} are {count:,} tokens already"
                raise ContextExceeded(field, f"{problem}; the context holds {max_context:,}")
            size *= 2


def field_of(prompt: Prompt) -> str:
    """Name the field of the request that holds the prompt."""
    match prompt:
        case TextPrompt():
            return "text"
        case ChatPrompt():
            return "chat.messages"
        case TokenPrompt():
            return "tokens.token_ids"


def _check_length(prompt: Prompt, most: int, max_context: int) -> None:
    """Raise ContextExceeded for a text of more than `most` characters: that is too long for the context, whatever its tokens are."""
    length = _length(prompt)
    if length > most:
        problem = f"has {length:,} characters; the context holds {max_context:,} tokens, and no text of more than {most:,} characters"
        raise ContextExceeded(field_of(prompt), problem)


def check_prompt_tokens(field: str, tokens: Sequence[int], vocab_size: int, max_context: int) -> None:
    """Raise InvalidRequest for no tokens or one outside the vocabulary; ContextExceeded, with the numbers, for too many."""
    if not tokens:
        raise InvalidRequest(field, "is empty, expected at least one token")
    if len(tokens) >= max_context:
        problem = f"is {len(tokens)} tokens long; the context holds {max_context}, of which one must be left for output"
        raise ContextExceeded(field, problem)
    check_tokens(field, tokens, vocab_size)


def _length(prompt: Prompt) -> int:
    """Count the characters of a prompt."""
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(len(each.content) for each in prompt.messages)
        case TokenPrompt():
            return 0

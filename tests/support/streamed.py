"""A stream that is read while something happens to who makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specsplit.client import Client
from specsplit.requests import Delta


def streamed(client: Client, prompt: Sequence[int], max_tokens: int, at_first: Callable[[], None]) -> tuple[int, ...]:
    """The tokens of a greedy stream; `at_first` is called when the first of them have come."""
    tokens: list[int] = []
    for event in client.stream(list(prompt), max_tokens=max_tokens, ignore_eos=True):
        if isinstance(event, Delta):
            if not tokens:
                at_first()
            tokens += event.tokens
    return tuple(tokens)

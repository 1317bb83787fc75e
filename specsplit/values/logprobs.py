"""How likely the target found what it picked, and what stood in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specsplit.values.checks import require

MAX_LOGPROBS: Final = 20
"""Likeliest tokens that a request may see beside each of its own."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target found a token: a log-probability of its own logits, before temperature, bias, penalties and filters."""

    token: int
    logprob: float
    """-inf for a token that the model rules out."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens in its place, best first; as many as were asked for."""
    text: str = ""
    """For people to read; empty where no tokenizer is at hand."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """A stretch of a prompt, with how likely the target found each of its tokens behind those before it."""

    first: int
    """Position of the first of the tokens."""
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    """One for each of the tokens, but for the first token of the prompt: nothing stands before it, so it has none."""

    @property
    def end(self) -> int:
        """Position behind the last of the tokens."""
        return self.first + len(self.tokens)

    def behind(self, position: int) -> PromptLogprobs | None:
        """What there is of it from a position on; None: nothing."""
        if position <= self.first:
            return self
        left = self.end - position
        return PromptLogprobs(position, self.tokens[-left:], self.logprobs[-left:]) if left > 0 else None


def check_logprobs(asked: int | None, field: str = "logprobs") -> None:
    """Raise InvalidRequest, naming `field`, unless `asked` is a number of likeliest tokens that a request may see, or None."""
    require(asked is None or 0 <= asked <= MAX_LOGPROBS, field, f"is {asked}, expected 0..{MAX_LOGPROBS} or nothing")

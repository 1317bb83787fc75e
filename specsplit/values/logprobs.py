"""How likely the target found what it picked."""

from __future__ import annotations

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


def check_logprobs(asked: int | None) -> None:
    """Raise InvalidRequest unless `asked` is a number of likeliest tokens that a request may see, or None."""
    require(
        asked is None or 0 <= asked <= MAX_LOGPROBS, "logprobs", f"is {asked}, expected 0..{MAX_LOGPROBS} or nothing"
    )

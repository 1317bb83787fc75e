"""When a session ends, and why one ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from specsplit.values.checks import require


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The end-of-sequence token, a stop token id or a stop string."""
    LENGTH = "length"
    """max_tokens, or the target's context, is full."""


@dataclass(frozen=True)
class Stopping:
    """When the verifier ends a session of its own accord."""

    max_tokens: int | None = None
    """Generated tokens at most; None: as many as the target's context and the verifier's KV pool hold."""
    stop_token_ids: tuple[int, ...] = ()
    """End after any of these; the token itself is not part of the output."""
    ignore_eos: bool = False
    """True keeps going after the model's own end-of-sequence tokens."""
    min_tokens: int = 0
    """Generated tokens before which nothing that would end the output is picked, or looked for; at most `max_tokens`."""

    def ends(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """The tokens that end a session; `eos_token_ids` are the model's own."""
        return frozenset((*self.stop_token_ids, *(() if self.ignore_eos else eos_token_ids)))

    def __post_init__(self) -> None:
        require(
            self.max_tokens is None or self.max_tokens >= 1, "max_tokens", f"is {self.max_tokens}, expected at least 1"
        )
        require(self.min_tokens >= 0, "min_tokens", f"is {self.min_tokens}, expected 0 or more")
        require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"is {self.min_tokens}, expected at most max_tokens = {self.max_tokens}",
        )

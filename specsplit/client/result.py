"""One finished generation."""

from __future__ import annotations

from dataclasses import dataclass

from specsplit.errors import Unavailable
from specsplit.requests import Delta, Done
from specsplit.values import FinishReason, SpeculationStatistics, TokenLogprob, Usage


@dataclass(frozen=True)
class Result:
    """The whole output, and how it came about."""

    text: str
    tokens: tuple[int, ...]
    done: Done
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of each of the tokens, if the request asked for that."""

    @property
    def reason(self) -> FinishReason:
        """Why it ended."""
        return self.done.reason

    @property
    def usage(self) -> Usage:
        """Tokens in and out."""
        return self.done.usage

    @property
    def speculation(self) -> SpeculationStatistics:
        """What speculation did."""
        return self.done.speculation

    @property
    def seed(self) -> int:
        """The seed used; the same request with it gives the same text."""
        return self.done.seed


class Gatherer:
    """Makes one Result of a stream's events."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._done: Done | None = None

    def add(self, event: Delta | Done) -> None:
        """Take the next event."""
        if isinstance(event, Done):
            self._done = event
            return
        self._text.append(event.text)
        self._tokens.extend(event.tokens)
        self._logprobs.extend(event.logprobs)

    def result(self) -> Result:
        """The whole. Raises Unavailable if the stream ended early."""
        if self._done is None:
            raise Unavailable("the coordinator ended the stream without its last message; send the request again")
        return Result("".join(self._text), tuple(self._tokens), self._done, tuple(self._logprobs))

"""What a finished generation gave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.errors import Incompatible, Unavailable
from specsplit.requests import Delta, Done, GenerateEvent
from specsplit.values import FinishReason, NoDrafts, SpeculationStatistics, TokenLogprob, Usage


@dataclass(frozen=True)
class Result:
    """The whole output, and how it came about; of a request for several choices that of choice 0."""

    text: str
    tokens: tuple[int, ...]
    done: Done
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of the tokens, if the request asked for them."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token of the prompt but the first, if the request asked for them; the same for all choices."""
    others: tuple[Result, ...] = ()
    """The results of the choices from 1 on; choice 0 has them."""

    @property
    def choices(self) -> tuple[Result, ...]:
        """All choices in order, this one first."""
        return (self, *self.others)

    @property
    def reason(self) -> FinishReason:
        return self.done.reason

    @property
    def usage(self) -> Usage:
        return self.done.usage

    @property
    def speculation(self) -> SpeculationStatistics:
        return self.done.speculation

    @property
    def no_drafts(self) -> NoDrafts | None:
        """Why its steps had no drafts, or hardly any, in words as `.sentence`; None: they had some, or it is not known."""
        return self.done.no_drafts

    @property
    def seed(self) -> int:
        """The seed used; the same request with it gives the same text."""
        return self.done.seed


class Gatherer:
    """Makes one Result of a stream's events."""

    def __init__(self, n: int = 1) -> None:
        """`n`: choices that the request asks for."""
        self._choices = [_Choice() for _ in range(n)]

    def add(self, event: GenerateEvent) -> None:
        """Take the next event. Raises Incompatible if it is of a choice that nobody asked for."""
        if event.index >= len(self._choices):
            raise Incompatible(f"the coordinator sent choice {event.index} of a request for {len(self._choices)}")
        self._choices[event.index].add(event)

    @property
    def text(self) -> str:
        """The text of choice 0 so far."""
        return self._choices[0].text

    def result(self) -> Result:
        """Return the whole result. Raises Unavailable if the stream ended early."""
        told = self._choices[0].prompt_logprobs
        first, *others = [replace(choice.result(), prompt_logprobs=told) for choice in self._choices]
        return replace(first, others=tuple(others))


class _Choice:
    """One choice so far."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._done: Done | None = None

    def add(self, event: GenerateEvent) -> None:
        if isinstance(event, Done):
            self._done = event
        else:
            self._deltas.append(event)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self._deltas)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(each for delta in self._deltas if delta.prompt is not None for each in delta.prompt.logprobs)

    def result(self) -> Result:
        if self._done is None:
            raise Unavailable("the coordinator ended the stream without its last message; send the request again")
        deltas = self._deltas
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        return Result(self.text, tokens, self._done, tuple(each for delta in deltas for each in delta.logprobs))

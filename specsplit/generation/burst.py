"""Events of a session that came at once, in the parts that are taken in at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from specsplit.sessions import DecodeEvent, Finished, Preempted, Tokens
from specsplit.values import PromptLogprobs

GATHERED: Final = 64
"""Tokens of a choice that are gathered for one message: with so many there come no more."""

Told: TypeAlias = Sequence[Tokens] | PromptLogprobs | Finished
"""What a part tells of an answer: steps, or something else by itself."""


def parts(events: Sequence[DecodeEvent]) -> Iterable[Told | Preempted]:
    """The parts, in order: steps of up to about GATHERED tokens, and all else by itself.

    So is a step with log-probabilities, which are large.
    """
    if len(events) == 1 and isinstance(event := events[0], Tokens):  # as nearly always while the loop is not behind
        return ((event,),)
    return _apart(events)


def _apart(events: Sequence[DecodeEvent]) -> Iterator[Told | Preempted]:
    steps, tokens = list[Tokens](), 0
    for event in events:
        if isinstance(event, Tokens) and not event.logprobs:
            steps.append(event)
            tokens += len(event.tokens)
            if tokens < GATHERED:
                continue
        if steps:
            yield steps
            steps, tokens = [], 0
        if not isinstance(event, Tokens):
            yield event
        elif event.logprobs:
            yield (event,)
    if steps:
        yield steps

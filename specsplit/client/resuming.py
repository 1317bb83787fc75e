"""What a caller has of an answer when its stream breaks, and how it gets the rest: at another coordinator, by itself, or by hand."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final

from specsplit.errors import Incompatible, TargetFailed, Unavailable
from specsplit.requests import Delta, Done, GenerateEvent, GenerateRequest

PAUSES_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Before each further try in a row that brings no token: a coordinator is soon known to be gone, and another may be starting."""
_SEED_BITS: Final = 53
"""Bits of a seed that is drawn: a JSON number holds it, as it holds those that coordinators draw."""


class Resuming:
    """One request, and what of it has come. Where there are several coordinators it goes on at another when its stream breaks.

    Text is final by tokens: what a coordinator streams for so many tokens of an answer is the same whoever streams it, and in however many
    pieces. So the rest begins where the tokens that have come end. Only the text that was held back at the end of an answer comes without
    tokens, and comes once more if the stream breaks behind it: it is left out then.
    """

    def __init__(self, request: GenerateRequest, *, elsewhere: bool) -> None:
        """`elsewhere`: there is another coordinator to go on at, which takes a seed: one is drawn here if the request has none."""
        self._elsewhere = elsewhere
        self._drawn = elsewhere and not (request.seeded or request.sampling.greedy)
        if self._drawn:
            seeded = replace(request.sampling, seed=secrets.randbits(_SEED_BITS))
            request = replace(request, sampling=seeded, seeded=True)
        self._request = request
        self._tokens = [*request.resume_from]
        self._tail = ""
        """Text that has come behind the last token."""
        self._again = ""
        """Text of these that the present stream will say once more."""
        self._ended = 0
        """Choices whose last message has come."""
        self._tries = 0
        """In a row that brought no token."""

    @property
    def rest(self) -> GenerateRequest:
        """The request for what has not come yet."""
        return replace(self._request, resume_from=tuple(self._tokens)) if self._resumable else self._request

    def add(self, event: GenerateEvent) -> GenerateEvent:
        """Take the next event -> what is new of it. Raises Incompatible if a coordinator goes on with another text than the one before."""
        self._ended += isinstance(event, Done)
        if isinstance(event, Done):
            return event
        event = self._unsaid(event)
        if event.tokens:
            self._tokens += event.tokens
            self._tail, self._tries = "", 0
        else:
            self._tail += event.text
        return event

    def check_whole(self) -> None:
        """Raise Unavailable if the stream has ended before its last message."""
        if self._ended < self._request.n:
            raise Unavailable("the coordinator ended the stream without its last message; send the request again")

    def after(self, error: Unavailable) -> float:
        """The stream has broken with `error` -> the seconds until the next try. Raises what the caller is told if there is none."""
        stays = not self._elsewhere or isinstance(error, TargetFailed) or self._tries == len(PAUSES_S)
        if stays or not (self._resumable or self._empty):
            told = self._told(error)
            raise told from (error.__cause__ if told is error else error)
        self._again = self._tail
        self._tries += 1
        return PAUSES_S[self._tries - 1]

    @property
    def _empty(self) -> bool:
        """True if nothing has come that would come twice."""
        return not (self._tokens or self._tail or self._ended)

    @property
    def _resumable(self) -> bool:
        return self._request.n == 1 and (self._request.seeded or self._request.sampling.greedy)

    def _unsaid(self, delta: Delta) -> Delta:
        """The delta without the text that has come already."""
        again, text = self._again, delta.text
        if not again:
            return delta
        if not again.startswith(text[: len(again)]):
            raise Incompatible(
                f"the coordinator that went on with the answer wrote {text!r:.80} in the place of {again!r:.80}"
            )
        self._again = again[len(text) :]
        return replace(delta, text=text[len(again) :])

    def _told(self, error: Unavailable) -> Unavailable:
        """`error` with the tokens and what to do with them; unchanged if none had come, or there are several choices."""
        if not self._tokens or self._request.n > 1:
            return error
        came = f"{error}; {len(self._tokens)} tokens of the answer had come"
        if not self._resumable:
            return Unavailable(f"{came}, and no seed was given, so it cannot be gone on with: send the request again")
        if self._drawn:
            came += f", with seed {self._request.sampling.seed}"
        return Unavailable(came, tuple(self._tokens), "the same request with resume_from set to them gets the rest")

"""What a caller has of an answer when its stream breaks, and how it gets the rest."""

from __future__ import annotations

from specsplit.errors import Unavailable
from specsplit.requests import Delta, Done, GenerateEvent, GenerateRequest


class Received:
    """The tokens of the only choice of a request, those that it resumes from included."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._tokens = [*request.resume_from]
        self._ended = 0
        """Choices whose last message has come."""

    def add(self, event: GenerateEvent) -> None:
        """Take the next event."""
        if isinstance(event, Delta):
            self._tokens += event.tokens
        self._ended += isinstance(event, Done)

    def check_whole(self) -> None:
        """Raise Unavailable, as `broken` makes it, if the stream has ended before its last message."""
        if self._ended < self._request.n:
            why = "the coordinator ended the stream without its last message; send the request again"
            raise self.broken(Unavailable(why))

    def broken(self, error: Unavailable) -> Unavailable:
        """`error` with the tokens and what to do with them; unchanged if none had come, or there are several choices."""
        if not self._tokens or self._request.n > 1:
            return error
        came = f"{error}; {len(self._tokens)} tokens of the answer had come"
        if not (self._request.seeded or self._request.sampling.greedy):
            return Unavailable(f"{came}, and no seed was given, so it cannot be gone on with: send the request again")
        return Unavailable(came, tuple(self._tokens), "the same request with resume_from set to them gets the rest")

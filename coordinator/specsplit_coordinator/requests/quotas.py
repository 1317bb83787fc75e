"""What each client may have at once, and use in a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from specsplit.clock import Clock
from specsplit.errors import Exhausted
from specsplit.settings import CoordinatorSettings

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The bounds for each client; None: there is none."""

    requests: int | None = None
    """Requests on their way at once."""
    queued: int | None = None
    """Requests that wait for a verifier at once."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and answers."""

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> Quota:
        """Read the bounds from the settings."""
        return cls(settings.client_max_requests, settings.client_max_queued, settings.client_tokens_per_minute)


@dataclass(slots=True)
class _Purse:
    """Tokens that a client may still use: a bucket that fills with time, to one minute's worth. It may be overdrawn by what has begun."""

    tokens: float
    filled_at: float

    def fill(self, now: float, rate: int) -> None:
        """Put in what has come since it was filled last, at so many tokens a minute."""
        self.tokens = min(float(rate), self.tokens + (now - self.filled_at) * rate / _MINUTE_S)
        self.filled_at = now


class Quotas:
    """What the clients have and use. Everything runs on one event loop."""

    def __init__(self, quota: Quota, clock: Clock, retry_after_s: float) -> None:
        """`retry_after_s`: the hint given where it is not known when there will be room."""
        self._quota = quota
        self._clock = clock
        self._retry_after_s = retry_after_s
        self._requests: Counter[str] = Counter()
        self._purses: dict[str, _Purse] = {}
        self._look_at = 0.0
        """When purses that are full again are to be forgotten."""

    @contextmanager
    def request(self, client: str, places: int) -> Generator[Callable[[int], None]]:
        """While it is entered a request of this client is on its way, for so many choices. Gives a function that notes tokens used.

        Raises Exhausted, naming the quota, with a hint when to retry.
        """
        self._check_requests(client, places)
        self._check_tokens(client)
        self._requests[client] += places
        try:
            yield lambda tokens: self._use(client, tokens)
        finally:
            self._requests[client] -= places
            if not self._requests[client]:
                del self._requests[client]

    def check_queued(self, client: str, queued: int) -> None:
        """Raise Exhausted if a client may not have so many waiting."""
        if self._quota.queued is not None and queued > self._quota.queued:
            raise self._exhausted(
                f"{_named(client)} would have {queued} requests waiting", "client_max_queued", self._quota.queued
            )

    def _check_requests(self, client: str, places: int) -> None:
        most, asked = self._quota.requests, self._requests[client] + places
        if most is not None and asked > most:
            raise self._exhausted(
                f"{_named(client)} would have {asked} requests on their way", "client_max_requests", most
            )

    def _check_tokens(self, client: str) -> None:
        rate = self._quota.tokens_per_minute
        if rate is None:
            return
        self._forget_full(rate)
        left = self._purse(client, rate).tokens
        if left <= 0:
            wait_s = (1 - left) * _MINUTE_S / rate
            raise self._exhausted(f"{_named(client)} has used up its tokens", "client_tokens_per_minute", rate, wait_s)

    def _use(self, client: str, tokens: int) -> None:
        rate = self._quota.tokens_per_minute
        if rate is not None and tokens:
            self._purse(client, rate).tokens -= tokens

    def _purse(self, client: str, rate: int) -> _Purse:
        """The client's purse, filled up to now. It takes as long however many clients there are: it is asked for with every delta."""
        now = self._clock.now()
        purse = self._purses.setdefault(client, _Purse(float(rate), now))
        purse.fill(now, rate)
        return purse

    def _forget_full(self, rate: int) -> None:
        """Forget the purses that are full again, once a minute."""
        now = self._clock.now()
        if now < self._look_at:
            return
        self._look_at = now + _MINUTE_S
        for purse in self._purses.values():
            purse.fill(now, rate)
        self._purses = {name: purse for name, purse in self._purses.items() if purse.tokens < rate}

    def _exhausted(self, what: str, setting: str, bound: int, wait_s: float | None = None) -> Exhausted:
        hint_s = self._retry_after_s if wait_s is None else wait_s
        return Exhausted(f"{what}, and its quota is {setting} = {bound:,}; try again in {hint_s:.3g} s", hint_s)


def _named(client: str) -> str:
    return f"client {client}" if client else "whoever gives no name"

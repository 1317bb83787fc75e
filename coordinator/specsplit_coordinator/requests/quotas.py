"""Quotas: how many requests a client may have at once, and how many tokens it may use in a minute."""

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
    """The quota of each client; None stands for no bound."""

    requests: int | None = None
    """Requests that wait or run at once."""
    queued: int | None = None
    """Requests that wait for a verifier at once."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and answers."""

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> Quota:
        """Read the bounds from the settings."""
        return cls(settings.client_max_requests, settings.client_max_queued, settings.client_tokens_per_minute)


@dataclass(slots=True)
class _TokenBucket:
    """The token bucket of one client: it fills to one minute's worth of tokens. Requests that have begun may overdraw it."""

    tokens: float
    filled_at: float

    def fill(self, now: float, rate: int) -> None:
        """Add the tokens due since it was filled last, at `rate` tokens a minute."""
        self.tokens = min(float(rate), self.tokens + (now - self.filled_at) * rate / _MINUTE_S)
        self.filled_at = now


class Quotas:
    """Holds clients to their quota. Everything runs on one event loop."""

    def __init__(self, quota: Quota, clock: Clock, retry_after_s: float) -> None:
        """`retry_after_s`: the retry hint where it is not known when there will be room."""
        self._quota = quota
        self._clock = clock
        self._retry_after_s = retry_after_s
        self._requests: Counter[str] = Counter()
        self._buckets: dict[str, _TokenBucket] = {}
        self._drop_at = 0.0
        """When full buckets are next to be dropped."""

    @contextmanager
    def request(self, client: str, places: int) -> Generator[Callable[[int], None]]:
        """Count a request of a client, for `places` choices, inside the block. Yields a function that takes tokens out of its bucket.

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
        """Raise Exhausted if a client may not have so many requests waiting."""
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
        self._drop_full(rate)
        left = self._bucket(client, rate).tokens
        if left <= 0:
            wait_s = (1 - left) * _MINUTE_S / rate
            raise self._exhausted(f"{_named(client)} has used up its tokens", "client_tokens_per_minute", rate, wait_s)

    def _use(self, client: str, tokens: int) -> None:
        rate = self._quota.tokens_per_minute
        if rate is not None and tokens:
            self._bucket(client, rate).tokens -= tokens

    def _bucket(self, client: str, rate: int) -> _TokenBucket:
        """The bucket of a client, filled up to now. It is asked for with every delta, so it takes constant time."""
        now = self._clock.now()
        bucket = self._buckets.setdefault(client, _TokenBucket(float(rate), now))
        bucket.fill(now, rate)
        return bucket

    def _drop_full(self, rate: int) -> None:
        """Drop full buckets, once a minute."""
        now = self._clock.now()
        if now < self._drop_at:
            return
        self._drop_at = now + _MINUTE_S
        for bucket in self._buckets.values():
            bucket.fill(now, rate)
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.tokens < rate}

    def _exhausted(self, what: str, setting: str, bound: int, wait_s: float | None = None) -> Exhausted:
        hint_s = self._retry_after_s if wait_s is None else wait_s
        return Exhausted(f"{what}, and its quota is {setting} = {bound:,}; try again in {hint_s:.3g} s", hint_s)


def _named(client: str) -> str:
    return f"client {client}" if client else "whoever gives no name"

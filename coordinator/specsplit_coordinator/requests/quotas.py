"""Quotas: how many requests a client may have at once, and how many tokens it may use in a minute.

Coordinators do not know one another, so each of N holds a client to its share of a quota, a Nth of it: all together allow no more than
the quota, wherever the client asks, but for a quota of less than N, of which each allows 1. Where there is a quota store, it counts for all
of them, and decides as long as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from specsplit.clock import Clock
from specsplit.errors import Exhausted
from specsplit.settings import CoordinatorSettings
from specsplit_coordinator.requests.quota_ledger import Verdict
from specsplit_coordinator.requests.quota_store import QuotaStore

_MINUTE_S = 60.0
_REQUESTS, _QUEUED, _TOKENS = "client_max_requests", "client_max_queued", "client_tokens_per_minute"


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

    @property
    def bounds(self) -> dict[str, int]:
        """The bounds that there are, by the names of their settings."""
        named = {_REQUESTS: self.requests, _QUEUED: self.queued, _TOKENS: self.tokens_per_minute}
        return {name: bound for name, bound in named.items() if bound is not None}

    def share(self, coordinators: int) -> Quota:
        """What each of so many coordinators allows."""
        requests, queued, tokens = (
            None if bound is None else share_of(bound, coordinators)
            for bound in (self.requests, self.queued, self.tokens_per_minute)
        )
        return Quota(requests, queued, tokens)


def share_of(bound: int, coordinators: int) -> int:
    """What each of so many coordinators allows of a bound: at least 1 of one that is not 0, or a client could be shut out by all."""
    return max(min(1, bound), bound // coordinators)


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
    """Holds clients to their quota, or to this coordinator's share of it. Everything runs on one event loop."""

    def __init__(
        self,
        quota: Quota,
        clock: Clock,
        retry_after_s: float,
        coordinators: Callable[[], int] = lambda: 1,
        store: QuotaStore | None = None,
    ) -> None:
        """`retry_after_s`: the retry hint where it is not known when there will be room.

        `coordinators`: how many there are now, this one among them; asked once for each request. `store`: where all of them count.
        """
        self._quota = quota
        self._coordinators = coordinators
        self._store = store
        self._sharing: int = 1
        """Coordinators that the quota is shared by, as of the latest request."""
        self._share = quota
        self._clock = clock
        self._retry_after_s = retry_after_s
        self._requests: Counter[str] = Counter()
        self._waiting_elsewhere: dict[str, int] = {}
        """Requests that wait at other coordinators, of clients whose latest request the store has let in."""
        self._buckets: dict[str, _TokenBucket] = {}
        self._drop_at = 0.0
        """When full buckets are next to be dropped."""

    async def ask(self, client: str, places: int) -> Verdict | None:
        """Ask the store about a request, for `places` choices; None if there is none, or it does not decide.

        `request` has to follow at once with what it says.
        """
        return None if self._store is None else await self._store.ask(client, places)

    @contextmanager
    def request(self, client: str, places: int, verdict: Verdict | None = None) -> Generator[Callable[[int], None]]:
        """Count a request of a client, for `places` choices, inside the block. Yields a function that takes tokens out of its bucket.

        Raises Exhausted, naming the quota, with a hint when to retry.
        """
        self._look()
        if verdict is None:
            self._waiting_elsewhere.pop(client, None)
            self._check_requests(client, places)
            self._check_tokens(client)
        else:
            self._obey(client, places, verdict)
        with self._counted(client, places, verdict):
            yield lambda tokens: self._use(client, tokens)

    @contextmanager
    def _counted(self, client: str, places: int, verdict: Verdict | None) -> Generator[None]:
        self._requests[client] += places
        if self._store is not None and verdict is None:
            self._store.ledger.began(client, places)
        try:
            yield
        finally:
            self._requests[client] -= places
            if not self._requests[client]:
                del self._requests[client]
                self._waiting_elsewhere.pop(client, None)
            if self._store is not None:
                self._store.ended(client, places)

    def check_queued(self, client: str, queued: int) -> None:
        """Raise Exhausted if a client may not have so many requests waiting here."""
        elsewhere = self._waiting_elsewhere.get(client)
        most = self._share.queued if elsewhere is None else self._quota.queued
        queued += elsewhere or 0
        if most is not None and queued > most:
            raise self._exhausted(
                f"{_named(client)} would have {queued} requests waiting", _QUEUED, shared=elsewhere is None
            )

    def described(self) -> str:
        """What this coordinator allows, in a sentence, where that is less than the settings say or a store is to count; empty elsewhere."""
        self._look()
        if self._store is not None and not self._store.trouble:
            return "quotas of clients are counted by the quota store, for all coordinators"
        allowed = self._share.bounds
        shares = [f"{name} {allowed[name]:,} of {bound:,}" for name, bound in self._quota.bounds.items()]
        why = "" if self._store is None else f"; the quota store does not decide: {self._store.trouble}"
        if not shares or (self._sharing == 1 and not why):
            return ""
        many = f"{self._sharing} coordinators" if self._sharing > 1 else "1 coordinator"
        return f"quotas of clients by shares, as one of {many}: {', '.join(shares)}{why}"

    def _obey(self, client: str, places: int, verdict: Verdict) -> None:
        """Take over what the store says of a client. Raises Exhausted if it refuses the request."""
        asked = verdict.held + self._requests[client] + places
        if (rate := self._share.tokens_per_minute) is not None:
            self._bucket(client, rate).tokens = min(float(rate), verdict.tokens / self._sharing)
        if not verdict.refused:
            self._waiting_elsewhere[client] = verdict.waiting
        elif verdict.refused == _TOKENS:
            raise self._no_tokens(client, verdict.tokens, self._quota.bounds[_TOKENS], shared=False)
        elif verdict.refused == _REQUESTS:
            raise self._exhausted(f"{_named(client)} would have {asked} requests on their way", _REQUESTS, shared=False)
        else:
            what = f"{_named(client)} would have more requests waiting than it may"
            raise self._exhausted(what, _QUEUED, shared=False)

    def _look(self) -> None:
        """Look how many coordinators there are."""
        sharing = max(1, self._coordinators())
        if sharing != self._sharing:
            self._sharing, self._share = sharing, self._quota.share(sharing)

    def _check_requests(self, client: str, places: int) -> None:
        most, asked = self._share.requests, self._requests[client] + places
        if most is not None and asked > most:
            raise self._exhausted(f"{_named(client)} would have {asked} requests on their way", _REQUESTS)

    def _check_tokens(self, client: str) -> None:
        rate = self._share.tokens_per_minute
        if rate is None:
            return
        self._drop_full(rate)
        left = self._bucket(client, rate).tokens
        if left <= 0:
            raise self._no_tokens(client, left, rate)

    def _use(self, client: str, tokens: int) -> None:
        rate = self._share.tokens_per_minute
        if rate is not None and tokens:
            self._bucket(client, rate).tokens -= tokens
            if self._store is not None:
                self._store.ledger.used(client, tokens)

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

    def _no_tokens(self, client: str, left: float, rate: int, *, shared: bool = True) -> Exhausted:
        wait_s = (1 - left) * _MINUTE_S / rate
        return self._exhausted(f"{_named(client)} has used up its tokens", _TOKENS, wait_s, shared=shared)

    def _exhausted(self, what: str, setting: str, wait_s: float | None = None, *, shared: bool = True) -> Exhausted:
        """`shared`: it is this coordinator's share that is used up, and not the quota as the store counts it."""
        hint_s = self._retry_after_s if wait_s is None else wait_s
        quota = f"its quota is {setting} = {self._quota.bounds[setting]:,}"
        if shared and self._sharing > 1:
            quota += f", of which each of {self._sharing} coordinators allows {self._share.bounds[setting]:,}"
        return Exhausted(f"{what}, and {quota}; try again in {hint_s:.3g} s", hint_s)


def _named(client: str) -> str:
    return f"client {client}" if client else "whoever gives no name"

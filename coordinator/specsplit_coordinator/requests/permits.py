"""Permits: a request holds one while its prompt is read, so that requests in preparation are bounded too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from specsplit.errors import Exhausted, InvalidRequest
from specsplit_coordinator.cluster.lease import Lease, Leases
from specsplit_coordinator.cluster.placement import free_places
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.fair_queue import FairQueue, QueueOwner
from specsplit_coordinator.requests.quotas import Quotas


class Permits:
    """Hands out permits as far as the queue has room, or can have it if requests of other clients are evicted."""

    def __init__(
        self,
        registry: Registry,
        leases: Leases,
        waiting: FairQueue[Waiter],
        max_queue: int,
        retry_after_s: float,
        quotas: Quotas | None,
        on_left: Callable[[], object],
    ) -> None:
        """`on_left` is called whenever a permit is given back."""
        self._registry = registry
        self._leases = leases
        self._waiting = waiting
        self._max_queue = max_queue
        self._retry_after_s = retry_after_s
        self._quotas = quotas
        self._on_left = on_left
        self._preparing: Counter[str] = Counter()
        """Places for which prompts are being read, by client."""

    def __len__(self) -> int:
        return self._preparing.total()

    def acquire(self, places: int, owner: QueueOwner) -> AbstractContextManager[None]:
        """Count a request as waiting for `places` places inside the block, in which it is prepared.

        To be entered before its prompt is read, and left before its places are waited for. If the queue has room only when others are
        evicted, they are evicted as the block ends without an error: the request may still be refused until then.

        Raises Exhausted, with a hint when to retry, if the queue is full, or this client has as many waiting as it may; Unavailable if
        no verifier takes sessions; InvalidRequest for more places than there are when nobody else runs or waits.
        """
        client, waiting = owner.client, self._ahead + places - free_places(self._registry)
        own, lacking = self._own(client) + places, max(0, waiting - self._max_queue)
        if self._quotas is not None and waiting > 0:
            self._quotas.check_queued(client, min(own, waiting))
        if lacking and not self._waiting.victims_for(client, own, lacking):
            self._check_can_ever_fit(places)
            raise self._full(self._ahead, places)
        return self._prepared(places, client, min(places, lacking))

    def waits(self, asked: Iterable[tuple[str, int]]) -> list[int]:
        """How many places each of these clients would have waiting if so many were asked for, one after the other."""
        ahead, free, more, waiting = self._ahead, free_places(self._registry), Counter[str](), list[int]()
        for client, places in asked:
            ahead += places
            more[client] += places
            waiting.append(max(0, min(self._own(client) + more[client], ahead - free)))
        return waiting

    @property
    def _ahead(self) -> int:
        """Places that all clients wait for, or are about to."""
        return len(self._waiting) + self._preparing.total()

    def _own(self, client: str) -> int:
        """Places that this client waits for, or is about to."""
        return self._waiting.count(client) + self._preparing[client]

    def _full(self, ahead: int, places: int) -> Exhausted:
        asked = f" beside one for {places} choices" if places > 1 else ""
        return Exhausted(
            f"{len(self._leases)} requests run and {ahead} wait, which is all there is room for{asked}; "
            f"try again in {self._retry_after_s:g} s",
            self._retry_after_s,
        )

    def _evict(self, client: str, places: int, promised: int) -> None:
        """Evict waiting requests of other clients, for as many of the `promised` places as are still lacking.

        Raises Exhausted if those that could have been evicted have been served meanwhile.
        """
        lacking = min(promised, self._ahead - free_places(self._registry) - self._max_queue)
        if lacking <= 0:
            return
        victims = self._waiting.victims_for(client, self._own(client), lacking)
        if not victims:
            raise self._full(self._ahead - places, places)
        why = f"the queue is full and most of it is of this client; try again in {self._retry_after_s:g} s"
        for waiter in [each for each in self._waiting if each.owner in victims]:
            self._waiting.remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(Exhausted(why, self._retry_after_s))

    def _check_can_ever_fit(self, places: int) -> None:
        known = self._registry.known_verifiers  # a verifier that drains is expected back
        most = sum(member.who.max_sessions for member in known)
        if places > self._max_queue + most:
            raise InvalidRequest(
                "n",
                f"is {places}, but this cluster has {most} places for sessions and lets {self._max_queue} more wait; "
                f"ask for {self._max_queue + most} choices at most",
            )

    @contextmanager
    def _prepared(self, places: int, client: str, promised: int) -> Generator[None]:
        self._preparing[client] += places
        try:
            yield
            self._evict(client, places, promised)
        finally:
            self._preparing[client] -= places
            self._preparing += Counter[str]()  # drops clients with none left
            self._on_left()


@dataclass(eq=False)
class Waiter:
    """One session that waits for a place on a verifier."""

    wanted: PlacementRequest
    again: bool
    """True if the session had a place before, and its verifier was lost or failed."""
    owner: QueueOwner
    granted: asyncio.Future[Lease]
    """Done when the session has its place, or is refused."""
    absent_since: float | None = None
    """Since when there has been no verifier that it may be placed on; None: there is one, full or not."""

"""Tickets: a request holds one while it is prepared, so that what all requests hold is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from specsplit.errors import Exhausted, InvalidRequest
from specsplit_coordinator.cluster.lease import Lease, Leases
from specsplit_coordinator.cluster.need import Need
from specsplit_coordinator.cluster.placement import free_places
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.fair_queue import Claim, FairQueue
from specsplit_coordinator.requests.quotas import Quotas


class Tickets:
    """Hands them out, as far as the queue has room, or may have it if others give way."""

    def __init__(
        self,
        registry: Registry,
        leases: Leases,
        waiting: FairQueue[Place],
        max_queue: int,
        retry_after_s: float,
        quotas: Quotas | None,
        on_left: Callable[[], object],
    ) -> None:
        """`on_left` is called whenever one was given back."""
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

    def take(self, places: int, claim: Claim) -> AbstractContextManager[None]:
        """While a request is prepared it counts as waiting, for so many places. To be taken before its prompt is looked at, and left before
        its places are waited for. If it fits only because others give way, they give way when the block ends without an error.

        Raises Exhausted, with a hint when to retry, if as many requests wait as may, of all clients or of this one; Unavailable if no
        verifier takes sessions;
        InvalidRequest for more places than there are when nobody else runs or waits.
        """
        client, waiting = claim.client, self._ahead + places - free_places(self._registry)
        own, lacking = self._own(client) + places, max(0, waiting - self._max_queue)
        if self._quotas is not None and waiting > 0:
            self._quotas.check_queued(client, min(own, waiting))
        if lacking and not self._waiting.crowding_out(client, own, lacking):
            self._check_can_ever_fit(places)
            raise self._full(self._ahead, places)
        return self._prepared(places, client, min(places, lacking))

    @property
    def _ahead(self) -> int:
        """Places that are waited for, or about to be."""
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

    def _crowd_out(self, client: str, places: int, promised: int) -> None:
        """Have others give way to a request for so many places, for as many as it was promised and are still lacking.

        Raises Exhausted if those that would have given way have been served meanwhile.
        """
        lacking = min(promised, self._ahead - free_places(self._registry) - self._max_queue)
        if lacking <= 0:
            return
        crowd = self._waiting.crowding_out(client, self._own(client), lacking)
        if not crowd:
            raise self._full(self._ahead - places, places)
        why = f"the queue is full and most of it is of this client; try again in {self._retry_after_s:g} s"
        for place in [each for each in self._waiting if each.claim in crowd]:
            self._waiting.remove(place)
            if not place.granted.done():
                place.granted.set_exception(Exhausted(why, self._retry_after_s))

    def _check_can_ever_fit(self, places: int) -> None:
        known = self._registry.known_verifiers  # one that drains is about to come back
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
            self._crowd_out(client, places, promised)
        finally:
            self._preparing[client] -= places
            self._preparing += Counter[str]()  # drops who has none any more
            self._on_left()


@dataclass(eq=False)
class Place:
    """A place that one session waits for."""

    need: Need
    again: bool
    """The session had a place before, and the verifier was lost or failed."""
    claim: Claim
    granted: asyncio.Future[Lease]
    absent_since: float | None = None
    """Since when no verifier may have it; None: one may, if it has room."""

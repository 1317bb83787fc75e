"""The bounded queue before the verifiers: every client in turn, and a clear refusal when it is full.

A request for n choices counts as n. It takes its ticket before anything is done for it, so that what all of them hold is bounded, too.

    ticket ──(the prompt is read)──> acquire ──> lease ──(the verifier failed, or was lost)──> acquire, ahead of the others

Where the queue is full of one client, the last request that it has waiting gives way to another client who has less there: as a whole, so
never one of which a choice had a place already, and not before the other's prompt has been read, since that may be refused too.
Who has had a place is not refused when no verifier is there, but waits for one, for a bounded time.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from specsplit.errors import SpecsplitError, Unavailable
from specsplit_coordinator.cluster.lease import Lease, Leases
from specsplit_coordinator.cluster.need import Need
from specsplit_coordinator.cluster.placement import better_verifier, choose_verifier, free_places
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.fair_queue import Claim, FairQueue
from specsplit_coordinator.requests.quotas import Quotas
from specsplit_coordinator.requests.tickets import Place, Tickets


class Admission:
    """Hands out leases. Everything runs on one event loop."""

    def __init__(
        self,
        registry: Registry,
        max_queue: int,
        retry_after_s: float,
        failover_s: float = 30.0,
        quotas: Quotas | None = None,
    ) -> None:
        """`failover_s`: how long who had a place before waits while no verifier takes sessions."""
        self._registry = registry
        self._failover_s = failover_s
        self._waiting: FairQueue[Place] = FairQueue()
        self.leases = Leases(self.serve_waiting)
        """The leases that are held now."""
        self._tickets = Tickets(registry, self.leases, self._waiting, max_queue, retry_after_s, quotas, self._note_idle)
        self._idle = asyncio.Event()
        self._idle.set()
        registry.subscribe(self.serve_waiting)

    @property
    def queued(self) -> int:
        """Places on a verifier that are waited for."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Leases that are held now."""
        return len(self.leases)

    def ticket(self, places: int = 1, claim: Claim | None = None) -> AbstractContextManager[None]:
        """While a request is prepared; see `Tickets.take`."""
        return self._tickets.take(places, claim or Claim())

    async def acquire(self, need: Need | None = None, *, again: bool = False, claim: Claim | None = None) -> Lease:
        """A place on the verifier that suits best, as soon as one is free; ahead of the others if the request had one before (`again`).

        Raises Exhausted if it gives way to another client.
        Raises Unavailable if no verifier takes sessions; if it is `again`, after a while without any, and one that has just failed, or can
        never hold it, is not taken then. Cancelling gives the place in the queue back.
        """
        return await self.wait(self.enqueue(need, again=again, claim=claim))

    def enqueue(self, need: Need | None = None, *, again: bool = False, claim: Claim | None = None) -> Place:
        """Begin to wait for a place, as `acquire` does; to be followed by `wait` or `cancel`."""
        place = Place(need or Need(), again, claim or Claim(), asyncio.get_running_loop().create_future())
        self._waiting.add(place, place.claim, ahead=again)
        self.serve_waiting()
        return place

    async def wait(self, place: Place) -> Lease:
        """The lease of a place that was enqueued. Raises, and is cancelled, as `acquire`."""
        try:
            return await place.granted
        except asyncio.CancelledError:
            self.cancel(place)
            raise

    def cancel(self, place: Place) -> None:
        """Nobody waits for the place any more; it is given back if it has been granted meanwhile."""
        granted = place.granted
        if place in self._waiting:
            self._waiting.remove(place)
        if not granted.cancel() and not granted.cancelled() and granted.exception() is None:
            granted.result().release()
        self._note_idle()

    def acquire_elsewhere(self, preempted_by: MemberState, need: Need) -> Lease | None:
        """A place for a session that its verifier had to preempt, where its pages are free now; None if there is none."""
        verifier = better_verifier(self._registry.verifiers, preempted_by, need)
        return None if verifier is None else self.leases.grant(verifier, need)

    async def idle(self) -> None:
        """Return when nothing runs, waits or is prepared."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def serve_waiting(self) -> None:
        """Give those who wait what places there are; to be asked now and then, since a verifier's cool-down ends without a word."""
        for place in [*self._waiting]:
            if place.granted.done():
                continue
            try:
                verifier = self._verifier_for(place)
            except SpecsplitError as error:
                self._waiting.remove(place)
                place.granted.set_exception(error)
                continue
            if verifier is not None:
                self._waiting.serve(place)
                place.granted.set_result(self.leases.grant(verifier, place.need))
            elif not place.again and not free_places(self._registry):
                break  # who waits for a verifier that could hold it, or for one that has not just failed, holds up nobody
        self._note_idle()

    def _verifier_for(self, place: Place) -> MemberState | None:
        """A verifier with room for it; None if it has to wait. Raises Unavailable if no verifier may have it and it waits for none."""
        try:
            sound_s = self._registry.lost_after_s if place.again else None
            patient = place.again or self._registry.awaited
            verifier = choose_verifier(self._registry.verifiers, place.need, sound_s=sound_s, patient=patient)
        except Unavailable as error:
            if self._registry.awaited or (place.again and self._absent_for(place) < self._failover_s):
                return None
            waited = f"no verifier took it over in {self._failover_s:g} s: " if place.again else ""
            raise Unavailable(f"{waited}{error}") from error
        place.absent_since = None
        return verifier

    def _absent_for(self, place: Place) -> float:
        """Seconds for which no verifier may have had it."""
        now = self._registry.clock.now()
        place.absent_since = now if place.absent_since is None else place.absent_since
        return now - place.absent_since

    @property
    def _busy(self) -> bool:
        return bool(len(self.leases) or len(self._waiting) or len(self._tickets))

    def _note_idle(self) -> None:
        if not self._busy:
            self._idle.set()

"""The bounded queue before the verifiers: clients are served fairly, and a request is refused with a reason when the queue is full.

A request for n choices counts as n. It acquires a permit before its prompt is read, so that requests in preparation are bounded too.

    permit ──(the prompt is read)──> acquire ──> lease ──(the verifier failed, or was lost)──> acquire, ahead of the others

If the queue is full and one client fills most of it, the last waiting request of that client is evicted for a request of another client.
It is evicted as a whole, so never once a choice of it has had a place, and not before the prompt of the other has been read, since that
may be refused too.
A session that has had a place before waits for a verifier if there is none, for a bounded time; any other is refused then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager

from specsplit.errors import SpecsplitError, Unavailable
from specsplit_coordinator.cluster.lease import Lease, Leases
from specsplit_coordinator.cluster.placement import free_places
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.cluster.verifier_placement import VerifierPlacement
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.fair_queue import FairQueue, QueueOwner
from specsplit_coordinator.requests.permits import Permits, Waiter
from specsplit_coordinator.requests.quotas import Quotas


class Admission:
    """Grants leases. Everything runs on one event loop."""

    def __init__(
        self,
        registry: Registry,
        max_queue: int,
        retry_after_s: float,
        failover_s: float = 30.0,
        quotas: Quotas | None = None,
    ) -> None:
        """`failover_s`: how long a session that had a place before waits while no verifier takes sessions."""
        self._registry = registry
        self._placement = VerifierPlacement(registry)
        self._failover_s = failover_s
        self._waiting: FairQueue[Waiter] = FairQueue()
        self.leases = Leases(self.serve_waiting)
        """The leases that are held now."""
        self._permits = Permits(registry, self.leases, self._waiting, max_queue, retry_after_s, quotas, self._note_idle)
        self._idle = asyncio.Event()
        self._idle.set()
        registry.subscribe(self.serve_waiting)

    @property
    def queued(self) -> int:
        """Sessions that wait for a place on a verifier."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Leases that are held now."""
        return len(self.leases)

    def permit(self, places: int = 1, owner: QueueOwner | None = None) -> AbstractContextManager[None]:
        """Hold a permit while a request is prepared; see `Permits.acquire`."""
        return self._permits.acquire(places, owner or QueueOwner())

    def waits(self, asked: Iterable[tuple[str, int]]) -> list[int]:
        """Tell how many places clients would have waiting; see `Permits.waits`."""
        return self._permits.waits(asked)

    async def acquire(
        self, wanted: PlacementRequest | None = None, *, again: bool = False, owner: QueueOwner | None = None
    ) -> Lease:
        """Wait for a place on the verifier that suits best. A session that had a place before (`again`) goes ahead of all others.

        Raises Exhausted if it is evicted for another client.
        Raises Unavailable if no verifier takes sessions. With `again` that is raised only after `failover_s`, and verifiers that have just
        failed, or can never hold the session, do not count. Cancelling leaves the queue.
        """
        return await self.wait(self.enqueue(wanted, again=again, owner=owner))

    def enqueue(
        self, wanted: PlacementRequest | None = None, *, again: bool = False, owner: QueueOwner | None = None
    ) -> Waiter:
        """Enter the queue, as `acquire` does, without waiting; `wait` or `cancel` must follow."""
        waiter = Waiter(
            wanted or PlacementRequest(), again, owner or QueueOwner(), asyncio.get_running_loop().create_future()
        )
        self._waiting.add(waiter, waiter.owner, ahead=again)
        self.serve_waiting()
        return waiter

    async def wait(self, waiter: Waiter) -> Lease:
        """Wait for the lease of a session that was enqueued. Raises, and may be cancelled, as `acquire`."""
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self.cancel(waiter)
            raise

    def cancel(self, waiter: Waiter) -> None:
        """Leave the queue; release the lease if it has been granted meanwhile."""
        granted = waiter.granted
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if not granted.cancel() and not granted.cancelled() and granted.exception() is None:
            granted.result().release()
        self._note_idle()

    def acquire_elsewhere(self, preempted_by: MemberState, wanted: PlacementRequest) -> Lease | None:
        """Grant a session that was preempted a lease on another verifier with the pages for it; None if there is none."""
        verifier = self._placement.better(preempted_by, wanted)
        return None if verifier is None else self.leases.grant(verifier, wanted)

    async def idle(self) -> None:
        """Return once no request runs, waits or is prepared."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def serve_waiting(self) -> None:
        """Grant free places to waiting sessions. To be called now and then: nothing announces that the cool-down of a verifier is over."""
        for waiter in [*self._waiting]:
            if waiter.granted.done():
                continue
            try:
                verifier = self._verifier_for(waiter)
            except SpecsplitError as error:
                self._waiting.remove(waiter)
                waiter.granted.set_exception(error)
                continue
            if verifier is not None:
                self._waiting.serve(waiter)
                waiter.granted.set_result(self.leases.grant(verifier, waiter.wanted))
            elif not waiter.again and not free_places(self._registry):
                break  # otherwise it waits for a certain verifier, and must not hold up those behind it
        self._note_idle()

    def _verifier_for(self, waiter: Waiter) -> MemberState | None:
        """Choose a verifier with a free place; None if the session has to wait. Raises Unavailable if there is nothing to wait for."""
        try:
            sound_s = self._registry.lost_after_s if waiter.again else None
            patient = waiter.again or self._registry.awaited
            verifier = self._placement.choose(waiter.wanted, sound_s=sound_s, patient=patient)
        except Unavailable as error:
            if self._registry.awaited or (waiter.again and self._absent_for(waiter) < self._failover_s):
                return None
            waited = f"no verifier took it over in {self._failover_s:g} s: " if waiter.again else ""
            raise Unavailable(f"{waited}{error}") from error
        waiter.absent_since = None
        return verifier

    def _absent_for(self, waiter: Waiter) -> float:
        """Seconds for which there has been no verifier that it may be placed on."""
        now = self._registry.clock.now()
        waiter.absent_since = now if waiter.absent_since is None else waiter.absent_since
        return now - waiter.absent_since

    @property
    def _busy(self) -> bool:
        return bool(len(self.leases) or len(self._waiting) or len(self._permits))

    def _note_idle(self) -> None:
        if not self._busy:
            self._idle.set()

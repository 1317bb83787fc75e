"""The bounded queue before the verifiers: every client in turn, and a clear refusal when it is full.

A request for n choices counts as n. It takes its ticket before anything is done for it, so that what all of them hold is bounded, too.

    ticket ──(the prompt is read)──> enter ──> lease ──(the verifier failed, or was lost)──> enter, ahead of the others

Where the queue is full of one client, the last request that it has waiting gives way to another client who has less there: as a whole, so
never one of which a choice had a place already, and not before the other's prompt has been read, since that may be refused too.
Who has had a place is not refused when no verifier is there, but waits for one, for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from specsplit.errors import Exhausted, InvalidRequest, SpecsplitError, Unavailable
from specsplit_coordinator.fair_queue import Claim, FairQueue
from specsplit_coordinator.need import Need
from specsplit_coordinator.placement import better_verifier, candidates, choose_verifier
from specsplit_coordinator.quotas import Quotas
from specsplit_coordinator.registry import Registry
from specsplit_coordinator.seat import Seat


class Lease:
    """One session's place on a verifier, and on a drafter if it has one; `release` gives both back."""

    def __init__(self, admission: Admission, verifier: Seat, need: Need) -> None:
        self._admission = admission
        self.verifier = verifier
        self._drafter: Seat | None = None
        self._serving: Seat | None = None
        """The drafter that has it now, as far as that is known here."""
        self._released = False
        self._answered = False
        self._on_trial = verifier.breaker.begin()
        verifier.running += 1
        if verifier.load.page_size:
            verifier.promised.append(need.pages(verifier.load.page_size))

    @property
    def drafter(self) -> Seat | None:
        """The one that it began with."""
        return self._drafter

    @property
    def serving(self) -> Seat | None:
        """The one that has it now."""
        return self._serving

    def take_drafter(self, seat: Seat | None) -> None:
        """Count the session on a drafter. To be called once."""
        self._drafter = seat
        self.hand_over(seat)

    def hand_over(self, seat: Seat | None) -> None:
        """Count the session on this drafter from now on."""
        if self._serving is not None:
            self._serving.running -= 1
        self._serving = seat
        if seat is not None:
            seat.running += 1
            if seat.group is not None:
                seat.group.placed()

    def succeeded(self) -> None:
        """Note that the verifier has answered. A second call does nothing."""
        if self._answered:
            return
        self._answered = True
        self._end_trial()
        self.verifier.breaker.succeeded()

    def release(self) -> None:
        """Give the places back. A second call does nothing."""
        if self._released:
            return
        self._released = True
        self._end_trial()
        self.verifier.running -= 1
        self.hand_over(None)
        self._admission.released(self)

    def _end_trial(self) -> None:
        if self._on_trial:
            self._on_trial = False
            self.verifier.breaker.end_trial()


@dataclass(eq=False)
class _Place:
    """One place that is waited for."""

    need: Need
    again: bool
    """It had one before, and the verifier was lost or failed."""
    claim: Claim
    granted: asyncio.Future[Lease]
    absent_since: float | None = None
    """Since when no verifier may have it; None: one may, if it has room."""


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
        self._max_queue = max_queue
        self._retry_after_s = retry_after_s
        self._failover_s = failover_s
        self._quotas = quotas
        self._waiting: FairQueue[_Place] = FairQueue()
        self._preparing: Counter[str] = Counter()
        """Places for which prompts are being read, by client."""
        self._leases: set[Lease] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        registry.watch(self.serve_waiting)

    @property
    def queued(self) -> int:
        """Places on a verifier that are waited for."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Leases that are held now."""
        return len(self._leases)

    def ticket(self, places: int = 1, claim: Claim | None = None) -> AbstractContextManager[None]:
        """While a request is prepared it counts as waiting, for so many places. To be taken before its prompt is looked at, and left before
        `enter`. If it fits only because others give way, they give way when the block ends without an error.

        Raises Exhausted, with a hint when to retry, if as many requests wait as may, of all clients or of this one; Unavailable if no
        verifier takes sessions;
        InvalidRequest for more places than there are when nobody else runs or waits.
        """
        claim = claim or Claim()
        client, waiting = claim.client, self._ahead + places - self._free_places()
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
        """Those of them that are this client's."""
        return self._waiting.count(client) + self._preparing[client]

    def _full(self, ahead: int, places: int) -> Exhausted:
        asked = f" beside one for {places} choices" if places > 1 else ""
        return Exhausted(
            f"{self.running} requests run and {ahead} wait, which is all there is room for{asked}; "
            f"try again in {self._retry_after_s:g} s",
            self._retry_after_s,
        )

    def _free_places(self) -> int:
        """Count them on verifiers that take sessions. Raises Unavailable if there is none, and none that may be back in a moment."""
        try:
            return sum(seat.free_places for seat in candidates(self._registry.verifiers))
        except Unavailable:
            if self._registry.awaited:
                return 0
            raise

    def _make_room(self, client: str, places: int, promised: int) -> None:
        """Have others give way to a request for so many places, for as many as it was promised and are still lacking.

        Raises Exhausted if those that would have given way have been served meanwhile.
        """
        lacking = min(promised, self._ahead - self._free_places() - self._max_queue)
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
        most = sum(seat.who.max_sessions for seat in known)
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
            self._make_room(client, places, promised)
        finally:
            self._preparing[client] -= places
            self._preparing += Counter[str]()  # drops who has none any more
            self._note_idle()

    async def enter(self, need: Need | None = None, *, again: bool = False, claim: Claim | None = None) -> Lease:
        """A place on the verifier that suits best, as soon as one is free; ahead of the others if the request had one before (`again`).

        Raises Exhausted if it gives way to another client.
        Raises Unavailable if no verifier takes sessions; if it is `again`, after a while without any, and one that has just failed, or can
        never hold it, is not taken then. Cancelling gives the place in the queue back.
        """
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        return await self._wait(_Place(need or Need(), again, claim or Claim(), granted))

    def better(self, preempted_by: Seat, need: Need) -> Lease | None:
        """A place for a session that its verifier had to preempt, where its pages are free now; None if there is none."""
        seat = better_verifier(self._registry.verifiers, preempted_by, need)
        return None if seat is None else self._lease(seat, need)

    async def idle(self) -> None:
        """Return when nothing runs, waits or is prepared."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def released(self, lease: Lease) -> None:
        """Note that a lease was given back; the lease calls this."""
        self._leases.discard(lease)
        self.serve_waiting()

    def hand_over(self, verifier: Seat, source: Seat, target: Seat) -> Lease | None:
        """A session of `verifier` goes on with another drafter: which one, is the verifier's choice; one is counted there.

        Returns that one's lease; None if the verifier has no session with `source`.
        """
        for lease in self._leases:
            if lease.verifier is verifier and lease.serving is source:
                lease.hand_over(target)
                return lease
        return None

    def serve_waiting(self) -> None:
        """Give those who wait what places there are; to be asked now and then, since a verifier's cool-down ends without a word."""
        for place in [*self._waiting]:
            if place.granted.done():
                continue
            try:
                seat = self._seat_for(place)
            except SpecsplitError as error:
                self._waiting.remove(place)
                place.granted.set_exception(error)
                continue
            if seat is not None:
                self._waiting.serve(place)
                place.granted.set_result(self._lease(seat, place.need))
            elif not place.again and not self._free_places():
                break  # who waits for a verifier that could hold it, or for one that has not just failed, holds up nobody
        self._note_idle()

    def _seat_for(self, place: _Place) -> Seat | None:
        """A seat with room for it; None if it has to wait. Raises Unavailable if no verifier may have it and it waits for none."""
        try:
            sound_s = self._registry.lost_after_s if place.again else None
            patient = place.again or self._registry.awaited
            seat = choose_verifier(self._registry.verifiers, place.need, sound_s=sound_s, patient=patient)
        except Unavailable as error:
            if self._registry.awaited or (place.again and self._absent_for(place) < self._failover_s):
                return None
            waited = f"no verifier took it over in {self._failover_s:g} s: " if place.again else ""
            raise Unavailable(f"{waited}{error}") from error
        place.absent_since = None
        return seat

    def _absent_for(self, place: _Place) -> float:
        """Seconds for which no verifier may have had it."""
        now = self._registry.clock.now()
        place.absent_since = now if place.absent_since is None else place.absent_since
        return now - place.absent_since

    @property
    def _busy(self) -> bool:
        return bool(self._leases or len(self._waiting) or self._preparing.total())

    async def _wait(self, place: _Place) -> Lease:
        self._waiting.add(place, place.claim, ahead=place.again)
        self.serve_waiting()
        try:
            return await place.granted
        except asyncio.CancelledError:
            granted = place.granted
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                granted.result().release()  # served in the same turn of the loop in which the caller went away
            raise
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            self._note_idle()

    def _lease(self, seat: Seat, need: Need) -> Lease:
        lease = Lease(self, seat, need)
        self._leases.add(lease)
        if seat.group is not None:
            seat.group.placed()
        return lease

    def _note_idle(self) -> None:
        if not self._busy:
            self._idle.set()

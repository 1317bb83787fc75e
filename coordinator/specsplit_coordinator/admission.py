"""The bounded queue before the verifiers: first come, first served, and a clear refusal when it is full."""

from __future__ import annotations

import asyncio
from collections import deque

from specsplit.errors import Exhausted, SpecsplitError
from specsplit_coordinator.placement import choose_verifier
from specsplit_coordinator.registry import Registry, Seat


class Lease:
    """One session's place on a verifier, and on a drafter if it has one; `release` gives both back."""

    def __init__(self, admission: Admission, verifier: Seat) -> None:
        self._admission = admission
        self.verifier = verifier
        self._drafter: Seat | None = None
        self._released = False
        verifier.running += 1

    @property
    def drafter(self) -> Seat | None:
        """The drafter chosen at the start."""
        return self._drafter

    def take_drafter(self, seat: Seat | None) -> None:
        """Count the session on a drafter; once."""
        self._drafter = seat
        if seat is not None:
            seat.running += 1

    def release(self) -> None:
        """Give the places back; again has no effect."""
        if self._released:
            return
        self._released = True
        self.verifier.running -= 1
        if self._drafter is not None:
            self._drafter.running -= 1
        self._admission.released()


class Admission:
    """Hands out leases. Everything runs on one event loop."""

    def __init__(self, registry: Registry, max_queue: int, retry_after_s: float) -> None:
        self._registry = registry
        self._max_queue = max_queue
        self._retry_after_s = retry_after_s
        self._waiting: deque[asyncio.Future[Lease]] = deque()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        registry.watch(self._serve_waiting)

    @property
    def queued(self) -> int:
        """Requests that wait for a verifier."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Leases held."""
        return self._running

    async def enter(self) -> Lease:
        """A place on the least busy verifier, as soon as one is free.

        Raises Exhausted, with a hint when to retry, if the queue is full; Unavailable if no verifier takes sessions.
        Cancelling gives the place in the queue back.
        """
        seat = choose_verifier(self._registry.verifiers)
        if seat is not None and not self._waiting:
            return self._lease(seat)
        if len(self._waiting) >= self._max_queue:
            raise Exhausted(
                f"{self._running} requests run and {len(self._waiting)} wait, which is all there is room for; "
                f"try again in {self._retry_after_s:g} s",
                self._retry_after_s,
            )
        return await self._wait()

    async def idle(self) -> None:
        """Return when nothing runs and nothing waits."""
        while self._running or self._waiting:
            self._idle.clear()
            await self._idle.wait()

    def released(self) -> None:
        """A lease was given back (called by it)."""
        self._running -= 1
        self._serve_waiting()

    async def _wait(self) -> Lease:
        place: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                place.result().release()  # served in the same turn of the loop in which the caller went away
            raise
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            self._note_idle()

    def _lease(self, seat: Seat) -> Lease:
        self._running += 1
        return Lease(self, seat)

    def _serve_waiting(self) -> None:
        while self._waiting:
            try:
                seat = choose_verifier(self._registry.verifiers)
            except SpecsplitError as error:
                self._refuse_waiting(error)
                break
            if seat is None:
                break
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(self._lease(seat))
        self._note_idle()

    def _refuse_waiting(self, error: SpecsplitError) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(error)

    def _note_idle(self) -> None:
        if not self._running and not self._waiting:
            self._idle.set()

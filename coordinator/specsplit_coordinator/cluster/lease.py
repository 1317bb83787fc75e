"""A session's place on a verifier, and on a drafter if it has one; and all that are held now."""

from __future__ import annotations

from collections.abc import Callable

from specsplit_coordinator.cluster.need import Need
from specsplit_coordinator.members.seat import Seat


class Lease:
    """One session's place on a verifier, and on a drafter if it has one; `release` gives both back."""

    def __init__(self, verifier: Seat, need: Need, on_release: Callable[[Lease], object]) -> None:
        """`on_release` is called once, when both are given back."""
        self._on_release = on_release
        self.verifier = verifier
        self.drafter: Seat | None = None
        """The drafter that the session began with."""
        self.serving: Seat | None = None
        """The drafter that has it now, as far as that is known here."""
        self._released = False
        self._answered = False
        self._on_trial = verifier.breaker.begin()
        verifier.running += 1
        if verifier.load.page_size:
            verifier.promised.append(need.pages(verifier.load.page_size))
        if verifier.group is not None:
            verifier.group.placed()

    def take_drafter(self, seat: Seat | None) -> None:
        """Count the session on a drafter. To be called once."""
        self.drafter = seat
        self.hand_over(seat)

    def hand_over(self, seat: Seat | None) -> None:
        """Count the session on this drafter from now on."""
        if self.serving is not None:
            self.serving.running -= 1
        self.serving = seat
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
        self._on_release(self)

    def _end_trial(self) -> None:
        if self._on_trial:
            self._on_trial = False
            self.verifier.breaker.end_trial()


class Leases:
    """The leases that are held now."""

    def __init__(self, on_release: Callable[[], object]) -> None:
        """`on_release` is called whenever one was given back."""
        self._on_release = on_release
        self._held: set[Lease] = set()

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, verifier: Seat, need: Need) -> Lease:
        """A session is placed on this verifier."""
        lease = Lease(verifier, need, self._released)
        self._held.add(lease)
        return lease

    def hand_over(self, verifier: Seat, source: Seat, target: Seat) -> Lease | None:
        """A session of `verifier` goes on with another drafter: which one, is the verifier's choice; one is counted there.

        Returns that one's lease; None if the verifier has no session with `source`.
        """
        for lease in self._held:
            if lease.verifier is verifier and lease.serving is source:
                lease.hand_over(target)
                return lease
        return None

    def _released(self, lease: Lease) -> None:
        self._held.discard(lease)
        self._on_release()

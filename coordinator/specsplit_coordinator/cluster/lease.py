"""Leases: the place of a session on a verifier, and on a drafter if it has one."""

from __future__ import annotations

from collections.abc import Callable

from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.member_state import MemberState


class Lease:
    """One session's place on a verifier, and on a drafter if it has one; `release` gives both back."""

    def __init__(self, verifier: MemberState, wanted: PlacementRequest, on_release: Callable[[Lease], object]) -> None:
        """`on_release` is called once, when both are given back."""
        self._on_release = on_release
        self.verifier = verifier
        self.drafter: MemberState | None = None
        """The drafter that was chosen when the session was placed."""
        self.serving: MemberState | None = None
        """The drafter that has the session now, as far as the coordinator knows."""
        self._released = False
        self._answered = False
        self._on_trial = verifier.breaker.begin()
        verifier.placed.reserved.append(wanted.pages(verifier.load) if verifier.load.page_size else 0)
        verifier.running += 1
        if verifier.group is not None:
            verifier.group.placed()

    def take_drafter(self, member: MemberState | None) -> None:
        """Set the drafter that the session begins with, and count the session on it. To be called once."""
        self.drafter = member
        self.hand_over(member)

    def hand_over(self, member: MemberState | None) -> None:
        """Count the session on this drafter instead of the one before."""
        if self.serving is not None:
            self.serving.running -= 1
        self.serving = member
        if member is not None:
            member.running += 1
            if member.group is not None:
                member.group.placed()

    def succeeded(self) -> None:
        """Tell the breaker that the verifier has answered. A second call does nothing."""
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
        """`on_release` is called whenever a lease is released."""
        self._on_release = on_release
        self._held: set[Lease] = set()

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, verifier: MemberState, wanted: PlacementRequest) -> Lease:
        """Make the lease of a session that is placed on this verifier."""
        lease = Lease(verifier, wanted, self._released)
        self._held.add(lease)
        return lease

    def hand_over(self, verifier: MemberState, source: MemberState, target: MemberState) -> Lease | None:
        """Count one session of `verifier` on the drafter `target` instead of `source`; which session it is, the verifier chooses.

        Returns the lease that was changed; None if the verifier has no session with `source`.
        """
        for lease in self._held:
            if lease.verifier is verifier and lease.serving is source:
                lease.hand_over(target)
                return lease
        return None

    def _released(self, lease: Lease) -> None:
        self._held.discard(lease)
        self._on_release()

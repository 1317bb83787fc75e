"""The verifiers of a cluster as a placement asks for them: by room, by what they have cached, and what they have in sum.

Nothing here is looked for: it is kept up as members come, go, drain, report, and get and lose sessions, in O(1) for each, apart from the
pages that a report adds or drops, and apart from the adapters of one that begins or ceases to have room. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from specsplit_coordinator.members.choices import OUT, ChoicesByAdapter, Standing
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.prefix_index import PrefixIndex
from specsplit_coordinator.members.urn import Urn


@dataclass(frozen=True, slots=True)
class _Counted:
    """What of one verifier is in the sums."""

    free: int = 0
    sessions: int = 0
    own: int = 0
    places: int = 0
    page_size: int = 0
    prefixes: tuple[int, ...] = ()
    standing: Standing = OUT


NOTHING = _Counted()


class VerifierIndex:
    """The verifiers that are there, draining ones included."""

    def __init__(self) -> None:
        self._counted: dict[MemberState, _Counted] = {}
        self.choices = ChoicesByAdapter()
        """Verifiers that a session may be placed on."""
        self.failing: Urn[MemberState] = Urn()
        """Verifiers that take sessions, have failed one, and have answered none since."""
        self.prefixes = PrefixIndex()
        """Verifiers that take sessions by the pages that they have."""
        self._free = 0
        self._page_sizes: Counter[int] = Counter()
        self.sessions = 0
        """Sessions on verifiers that take sessions, whoever has placed them."""
        self.own = 0
        """Sessions on them that were placed from here."""
        self.places = 0
        """Places of those that take sessions."""

    def __contains__(self, verifier: MemberState) -> bool:
        return verifier in self._counted

    def __len__(self) -> int:
        return len(self._counted)

    def update(self, verifier: MemberState, *, present: bool = True) -> None:
        """Note how a verifier fares now, or that it is gone."""
        before = self._counted.get(verifier)
        now = _count(verifier) if present else NOTHING
        self._sum_up(before or NOTHING, now)
        self._sort(verifier, before or NOTHING, now)
        self.prefixes.update(verifier, () if before is None else before.prefixes, now.prefixes)
        if present:
            self._counted[verifier] = now
        else:
            self._counted.pop(verifier, None)

    @property
    def page_sizes(self) -> Mapping[int, int]:
        """How many of them have pages of so many tokens."""
        return +self._page_sizes

    @property
    def free_places(self) -> int:
        """Sessions that there is room for; those on verifiers that have just failed count only where all have."""
        cooling = [verifier for verifier in self.failing if not verifier.breaker.admits]
        if len(cooling) == len(self.choices.all.open):
            return self._free
        return self._free - sum(verifier.free_places for verifier in cooling)

    def _sum_up(self, before: _Counted, now: _Counted) -> None:
        self._free += now.free - before.free
        self.sessions += now.sessions - before.sessions
        self.own += now.own - before.own
        self.places += now.places - before.places
        if now.page_size != before.page_size:
            self._page_sizes[before.page_size] -= 1
            self._page_sizes[now.page_size] += 1

    def _sort(self, verifier: MemberState, before: _Counted, now: _Counted) -> None:
        self.failing.hold(verifier, held=now.places > 0 and verifier.breaker.failures > 0)
        if before.standing != now.standing:
            self.choices.hold(verifier, now.standing)


def _count(verifier: MemberState) -> _Counted:
    """What counts of a verifier: nothing, if it takes no sessions."""
    if verifier.closed_because:
        return NOTHING
    load = verifier.load
    sessions, places = verifier.sessions, verifier.who.max_sessions
    free = verifier.free_places
    standing = Standing(places > 0, free > 0, free > 0 and verifier.at_home)
    return _Counted(free, sessions, verifier.running, places, load.page_size, verifier.prefixes, standing)

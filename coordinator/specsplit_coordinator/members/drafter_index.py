"""The drafters of a cluster by kind, as a placement asks for them; kept up in O(1) for each change of one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

from specsplit.values import DrafterKind, Vocabulary
from specsplit_coordinator.members.compatibility import compatible_info
from specsplit_coordinator.members.member_state import MemberState, kind_of
from specsplit_coordinator.members.urn import Urn


class DrafterIndex:
    """The drafters that verifiers may use: those that fit the target and do not drain."""

    def __init__(self, target: Vocabulary) -> None:
        self._target = target
        self._by_name: dict[str, MemberState] = {}
        self._open: dict[DrafterKind, Urn[MemberState]] = {kind: Urn() for kind in DrafterKind}
        self._with_room: dict[DrafterKind, Urn[MemberState]] = {kind: Urn() for kind in DrafterKind}

    def __contains__(self, drafter: MemberState) -> bool:
        return drafter in self._open[kind_of(drafter)]

    def update(self, drafter: MemberState, *, present: bool = True) -> None:
        """Note how a drafter fares now, or that it is gone."""
        usable = present and not drafter.closed_because and compatible_info(drafter, self._target) is not None
        kind = kind_of(drafter)
        if usable:
            self._by_name[drafter.member_id] = drafter
        elif self._by_name.get(drafter.member_id) is drafter:
            del self._by_name[drafter.member_id]
        self._open[kind].hold(drafter, held=usable)
        self._with_room[kind].hold(drafter, held=usable and drafter.has_free_place)

    def get(self, member_id: str) -> MemberState | None:
        """The drafter of this name, if there is one."""
        return self._by_name.get(member_id)

    def count(self, kinds: Collection[DrafterKind]) -> int:
        """How many there are of these kinds."""
        return sum(len(self._open[kind]) for kind in kinds)

    def all(self, kinds: Collection[DrafterKind]) -> Iterator[MemberState]:
        """All of these kinds, full ones included."""
        return (drafter for kind in kinds for drafter in self._open[kind])

    def draw(self, kinds: Collection[DrafterKind], count: int, chance: Random) -> list[MemberState]:
        """Draw `count` of each of these kinds, of those with room; if none has any, of the full ones."""
        for urns in (self._with_room, self._open):
            drawn = [drafter for kind in kinds for drafter in urns[kind].draw(count, chance)]
            if drawn:
                return drawn
        return []

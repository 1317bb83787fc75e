"""Chooses verifiers among a few that are drawn, so that what a placement costs does not depend on how many there are.

Some are drawn of those that are at home here, some of all that have room, and some of those that have the beginning of the text. Drawing
few also keeps coordinators apart that know the same (M. Mitzenmacher: The Power of Two Choices in Randomized Load Balancing, 2001). Where
few have room all of these are looked at. If none that is drawn can take the session, every verifier is looked at. For a session with an
adapter all of this is said of the verifiers that have it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Final

from specsplit_coordinator.cluster.outlook import Outlook
from specsplit_coordinator.cluster.placement import (
    better_verifier,
    can_hold,
    choose_verifier,
    failing_groups,
    pages_lacking,
)
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import having
from specsplit_coordinator.members.group import Group
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

FEW: Final = 16
"""Where no more have room than these, all are looked at."""
AT_HOME: Final = 8
"""Of those that are at home so many are drawn: what they have is known, so more choices are only better."""
ANYWHERE: Final = 3
"""Of all so many are drawn, where coordinators share them: reports are old, so that with more of them coordinators meet at the same."""
KNOWN: Final = 4
"""Of those that have most of the text's beginning so many are drawn."""
MORE: Final = 4
"""If the best of these lacks pages or has a queue, so many times as many are drawn."""


class VerifierPlacement:
    """Chooses the verifiers of one cluster's sessions; `choose_verifier` says which is best of some."""

    def __init__(self, registry: Registry, chance: Random | None = None) -> None:
        self._registry = registry
        self._index = registry.index.verifiers
        self._chance = chance or Random()

    def choose(
        self, wanted: PlacementRequest, *, sound_s: float | None = None, patient: bool = False
    ) -> MemberState | None:
        """Choose a verifier with a free place; None if the session has to wait. Arguments and errors are those of `choose_verifier`."""
        choices = self._index.choices.having(wanted.adapter)
        if choices.open and not choices.with_room and not patient and sound_s is None:
            return None  # all are full; else there may be a reason not to wait for one of them
        outlook = Outlook.of(self._index)
        best = self._best(wanted, 1, sound_s, outlook)
        if best is None or best.load.waiting or pages_lacking(best, wanted):
            best = self._best(wanted, MORE, sound_s, outlook)
        if best is not None:
            return best
        return choose_verifier(self._registry.verifiers, wanted, sound_s=sound_s, patient=patient, outlook=outlook)

    def better(self, preempted_by: MemberState, wanted: PlacementRequest) -> MemberState | None:
        """Choose a verifier for a session that another had to preempt; see `better_verifier`."""
        return better_verifier(self._drawn(wanted, MORE), preempted_by, wanted)

    def _best(
        self, wanted: PlacementRequest, times: int, sound_s: float | None, outlook: Outlook
    ) -> MemberState | None:
        """The best of some that are drawn; None if none of them is what the session needs without reserve."""
        failing = () if sound_s is None else failing_groups(self._index.failing, sound_s)
        fit = [each for each in self._drawn(wanted, times) if _suits(each, wanted, failing)]
        return choose_verifier(fit, wanted, sound_s=sound_s, outlook=outlook) if fit else None

    def _drawn(self, wanted: PlacementRequest, times: int) -> Sequence[MemberState]:
        index, chance, choices = self._index, self._chance, self._index.choices.having(wanted.adapter)
        if wanted.adapter is None and len(index) <= FEW * times:
            return self._registry.verifiers
        if len(choices.with_room) <= FEW * times:
            return [*choices.with_room]
        drawn = choices.at_home.draw(AT_HOME * times, chance)
        if len(choices.at_home) < len(choices.with_room):
            drawn += choices.with_room.draw(ANYWHERE * times, chance)
        for page_size in index.page_sizes:
            drawn += having(index.prefixes.draw(wanted.marks(page_size), KNOWN, chance), wanted.adapter)
        return [*dict.fromkeys(drawn)]


def _suits(verifier: MemberState, wanted: PlacementRequest, failing: Collection[Group | None]) -> bool:
    """True if a verifier has room, is sound, and can hold the session to its end."""
    return (
        verifier.has_free_place
        and verifier.breaker.admits
        and verifier.group not in failing
        and verifier.member_id not in wanted.failed_on
        and can_hold(verifier, wanted, verifier.max_draft_tokens)
    )

"""How busy verifiers are taken to be, by a coordinator that may share them with others that it does not know. Pure.

Reports are a while old, and coordinators that act on the same report all choose the same verifier. So each verifier has one of them as its
home, which places most of its sessions, and counts these itself. The others place sessions there only where that evens things out. Each
takes what it has placed since the report for its part of what all have: the home by what others have on this verifier, the others by what
they have in the whole cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.verifier_index import VerifierIndex

MARGIN: Final = 0.5
"""Sessions above the mean up to which a verifier that is at home is preferred: by less than a whole one loads always differ."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a coordinator expects of verifiers."""

    mean: float = 0.0
    """Share of the places of all verifiers that are taken."""
    others: float = 0.0
    """Sessions that others have placed for each that was placed from here."""

    @classmethod
    def of(cls, verifiers: VerifierIndex) -> Outlook:
        """What is to be expected by the sessions that are there now."""
        elsewhere = verifiers.sessions - verifiers.own
        return cls(verifiers.sessions / max(1, verifiers.places), elsewhere / max(1, verifiers.own))

    def busy(self, verifier: MemberState) -> float:
        """Share of a verifier's places that are expected to be taken, with what others have placed there since its report.

        At home they place little, but for one that gets more requests than the others: what they have there of late tells how much.
        Each of them counts as much as this coordinator at most: one that has just begun has placed too little to go by.
        """
        others = verifier.elsewhere / max(1, verifier.running) if verifier.at_home else self.others
        unseen = len(verifier.placed.reserved) * min(others, max(0, verifier.report.coordinators - 1))
        return verifier.busy + unseen / verifier.who.max_sessions

    def prefers(self, verifier: MemberState) -> bool:
        """True for a verifier that is at home and hardly busier than the mean; where there is one coordinator, for every one."""
        if not verifier.shared:
            return True
        return verifier.at_home and verifier.busy <= self.mean + MARGIN / verifier.who.max_sessions


ALONE: Final = Outlook()
"""Where nobody else places sessions."""

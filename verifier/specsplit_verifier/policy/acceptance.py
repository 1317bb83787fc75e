"""How often nodes are accepted, relative to their survivals, and whether a session should be drafted for at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from specsplit_verifier.policy.repeats import Repeats
from specsplit_verifier.sessions.rests import PROBE, Rests

_BINS: Final = 10
"""Bins, each of half the survival of the one before; the last has all that are less likely."""
_BELIEF: Final = 4.0
"""Weight of the drafter's own survivals in every bin, in accepted nodes."""
_SESSION_BELIEF: Final = 32.0
"""Weight of the drafter's other sessions in every session, in accepted nodes (docs/log.md, 2026-11-23)."""

IDLE: Final = 32
"""After so many steps in a row that took no node the drafter is told to rest."""
PROBED: Final = 4
"""Nodes that a step of a probe takes at least, if they are there: without nodes nothing can be learnt."""


class Acceptance:
    """Acceptance of a drafter's nodes, by survival. Older steps fade by 0.5 % each."""

    def __init__(self) -> None:
        self._accepted = [0.0] * _BINS
        self._expected = [0.0] * _BINS
        self.ratios: Sequence[float] = [1.0] * _BINS
        """How often nodes of each bin were accepted, relative to their survivals."""

    def observe(self, survivals: Sequence[float], accepted: Sequence[int]) -> None:
        """Observe that nodes with these survivals were verified, and those at the indices `accepted` were accepted."""
        self._accepted = [0.995 * count for count in self._accepted]
        self._expected = [0.995 * count for count in self._expected]
        for survival in survivals:
            self._expected[bin_of(survival)] += survival
        for index in accepted:
            self._accepted[bin_of(survivals[index])] += 1.0
        found = zip(self._accepted, self._expected, strict=True)
        self.ratios = [(accepted + _BELIEF) / (expected + _BELIEF) for accepted, expected in found]


class SessionAcceptance:
    """Acceptance in one session, whose text may suit the drafter better or worse than others. Older steps fade by 5 % each."""

    def __init__(self, drafter: Acceptance) -> None:
        self._drafter = drafter
        self._accepted = self._expected = self._said = 0.0

    @property
    def level(self) -> float:
        """How often nodes were accepted in this session, relative to their survivals; nodes to come are expected to do the same."""
        return (self._accepted + _SESSION_BELIEF) / (self._said + _SESSION_BELIEF)

    def corrected(self, survivals: Iterable[float]) -> Iterator[float]:
        """Correct survivals of nodes, best first, by the acceptance in this session. They stay in order, and none is above 1."""
        own = (self._accepted + _SESSION_BELIEF) / (self._expected + _SESSION_BELIEF)
        ratios, least = self._drafter.ratios, 1.0
        for survival in survivals:
            least = min(least, survival * ratios[bin_of(survival)] * own)
            yield least

    def observe(self, survivals: Sequence[float], accepted: Sequence[int]) -> None:
        """Observe that nodes with these survivals were verified, and those at the indices `accepted` were accepted."""
        ratios = self._drafter.ratios
        expected = sum(survival * ratios[bin_of(survival)] for survival in survivals)
        self._said = 0.95 * self._said + sum(survivals)
        self._accepted = 0.95 * self._accepted + len(accepted)
        self._expected = 0.95 * self._expected + expected
        self._drafter.observe(survivals, accepted)


def bin_of(survival: float) -> int:
    """Find the bin of nodes of such a survival."""
    return int(min(-math.log2(max(survival, 1e-12)), _BINS - 1))


class Standing:
    """One session at one drafter. Steps are those of the session."""

    def __init__(self, address: str, alone: SessionAcceptance, together: SessionAcceptance) -> None:
        """`alone`: of the drafter's nodes. `together`: of those of steps that were looked up for beside it."""
        self.address = address
        self.looked_up = False
        """True while it is looked up for beside the drafter: then survivals come of the record of both."""
        self._acceptances = alone, together
        self._idle = 0
        self._rests = Rests()
        self._repeats = Repeats()

    @property
    def resting(self) -> bool:
        """True if the drafter should draft nothing now."""
        return self._rests.resting

    @property
    def acceptance(self) -> SessionAcceptance:
        """The acceptance of nodes like those that the session has now."""
        return self._acceptances[self.looked_up]

    @property
    def repeating(self) -> bool:
        """True if the session's text repeats itself now."""
        return self._repeats.now

    def read(self, tokens: Sequence[int]) -> None:
        """Take in all tokens of the session, of which some are new. A rest ends, by a probe, when the text begins to repeat itself."""
        repeated = self._repeats.now
        self._repeats.read(tokens)
        if self.resting and self._repeats.now and not repeated:
            self._rests.probe()

    @property
    def least(self) -> int:
        """Nodes that the next step takes whether they pay or not, as far as there are any."""
        return PROBED if self._rests.probing else 0

    def stepped(self, survivals: Sequence[float], accepted: Sequence[int], *, drafter_ready: bool = True) -> None:
        """Observe a step of the session over nodes with these survivals, of which those at the indices `accepted` were accepted.

        A step for which a drafter that is at work had said nothing yet (`drafter_ready`), since it still reads or is late, tells
        nothing of its worth.
        """
        if not (self.resting or drafter_ready):
            return
        if len(survivals):
            self.acceptance.observe(survivals, accepted)
        if self.resting and len(survivals):  # nobody told the drafter to, since nothing is chosen under this plan
            self._work()
        elif self.resting or self._rests.probing:
            if self._rests.step():
                self._idle = IDLE - PROBE  # a few steps without nodes, and the drafter rests again
        elif len(survivals):
            self._work()
        else:
            self._idle += 1
            if self._idle >= IDLE:
                self._rests.begin()

    def _work(self) -> None:
        self._idle = 0
        self._rests.end()

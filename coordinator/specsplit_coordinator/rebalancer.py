"""Moves running sessions from one drafter to another of its kind where that pays clearly: little by little, and never to and fro."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from operator import itemgetter

from specsplit.clock import Clock
from specsplit.membership import HandOver
from specsplit.observe import fields
from specsplit_coordinator.admission import Admission
from specsplit_coordinator.balance import Balance
from specsplit_coordinator.registry import Registry, Seat, endpoint_of, kind_of

_log = logging.getLogger(__name__)

EVERY_S = 2.0
"""Between two rounds. In one round a verifier is told to hand one session over, at most."""
MARGIN = 0.25
"""What a session has to gain, as a share of the score where it is; nothing where sessions are spread unevenly."""
NEVER_BACK_S = 60.0
"""For so long no session of the verifier goes back the way that one has come, if both are greedy or both are sampled."""


class Rebalancer:
    """Looks at how sessions are spread over drafters. A session keeps its kind of drafter: its caller may have asked for that."""

    def __init__(self, registry: Registry, balance: Balance, admission: Admission, clock: Clock) -> None:
        self._registry = registry
        self._balance = balance
        self._admission = admission
        self._clock = clock
        self._due = 0.0
        self._moved: dict[tuple[str, str, str, bool], float] = {}
        """When a session of (verifier, from drafter, to drafter, sampled) was handed over last."""

    def look(self) -> None:
        """Tell verifiers to hand sessions over, if it is time and pays."""
        now = self._clock.now()
        if now < self._due:
            return
        self._due = now + EVERY_S
        self._moved = {way: at for way, at in self._moved.items() if now - at < NEVER_BACK_S}
        for verifier in self._registry.verifiers:
            if verifier.draining or verifier.hand_overs:  # one that does not listen is told nothing more
                continue
            found = max((*self._gains(verifier, False), *self._gains(verifier, True)), default=None, key=itemgetter(0))
            if found is not None and found[0] > 1:
                self._hand_over(verifier, *found[1:])

    def _gains(self, verifier: Seat, sampled: bool) -> Iterator[tuple[float, Seat, Seat, bool]]:
        """What a session would gain by going from one drafter to another, as a multiple of what it has to gain."""
        usable = [seat for seat in self._registry.usable_drafters if seat.member_id not in verifier.cooling_down]
        score = partial(self._balance.score, verifier, sampled=sampled)
        there = [(seat, score(seat, more=1)) for seat in usable if seat.has_room]
        for source in usable:
            if self._balance.report(verifier, source, sampled=sampled).sessions:
                here = score(source)
                for target, gained in there:
                    if self._may_go(verifier, source, target, sampled):
                        needed = here if _uneven(source, target) else (1 + MARGIN) * here
                        yield gained / needed, source, target, sampled

    def _may_go(self, verifier: Seat, source: Seat, target: Seat, sampled: bool) -> bool:
        back = (verifier.member_id, target.member_id, source.member_id, sampled)
        return target is not source and kind_of(target) is kind_of(source) and back not in self._moved

    def _hand_over(self, verifier: Seat, source: Seat, target: Seat, sampled: bool) -> None:
        self._moved[verifier.member_id, source.member_id, target.member_id, sampled] = self._clock.now()
        self._admission.hand_over(verifier, source, target)
        verifier.hand_overs.append(HandOver(source.member_id, endpoint_of(target), 1, sampled))
        self._registry.changed()
        told = fields(verifier=verifier.member_id, source=source.member_id, target=target.member_id, sampled=sampled)
        _log.info("a session is handed over to a better drafter", extra=told)


def _uneven(source: Seat, target: Seat) -> bool:
    """True if one has more than twice the sessions that the other would have with one more."""
    return source.sessions > 2 * (target.sessions + 1)

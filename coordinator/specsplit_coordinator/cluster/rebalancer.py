"""Moves running sessions from one drafter to another where that pays clearly: little by little, and never to and fro."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from specsplit.clock import Clock
from specsplit.membership import HandOver
from specsplit.observe import fields
from specsplit_coordinator.cluster.drafter_scorer import TEXTS, DrafterScorer
from specsplit_coordinator.cluster.lease import Lease, Leases
from specsplit_coordinator.members.member_state import MemberState, endpoint_of, kind_of
from specsplit_coordinator.members.registry import Registry

_log = logging.getLogger(__name__)

EVERY_S = 2.0
"""Seconds between two rounds. In one round a verifier is told to hand one session over, at most."""
MARGIN = 0.25
"""What a session has to gain, as a share of the score where it is; nothing where sessions are spread unevenly over drafters of a kind."""
NEVER_BACK_S = 60.0
"""Seconds for which no session of the verifier goes back the way that one has come, if both are greedy or both are sampled, or goes the
same way if nothing came of that."""
LOOKS = 2
"""After a verifier has been told, and has been heard: if by then it has handed no session over, none is counted elsewhere."""


class _Move(NamedTuple):
    """A session of a verifier, sampled or greedy, goes from one drafter to another."""

    verifier: MemberState
    source: MemberState
    target: MemberState
    sampled: bool

    @property
    def back(self) -> _Move:
        return self._replace(source=self.target, target=self.source)

    @property
    def other_kind(self) -> bool:
        return kind_of(self.source) is not kind_of(self.target)

    @property
    def uneven(self) -> bool:
        """True if of two drafters of a kind one has more than twice the sessions that the other would have with one more."""
        return not self.other_kind and self.source.sessions > 2 * (self.target.sessions + 1)


class _Moved(NamedTuple):
    """When a move was ordered last, how many sessions the two drafters had then, and what came of it."""

    at: float
    here: int
    there: int
    lease: Lease | None
    """What is counted at the target before it is known that a session has gone; None: nothing, or that is known."""
    gone: bool = False
    """A session was seen to have gone, or to have come."""
    looks: int = 0
    """At which the verifier had been told, and no session had gone."""


class Rebalancer:
    """Looks at how sessions are spread over drafters. A session whose caller asked for a kind of drafter keeps it."""

    def __init__(self, registry: Registry, scorer: DrafterScorer, leases: Leases, clock: Clock) -> None:
        self._registry = registry
        self._scorer = scorer
        self._leases = leases
        self._clock = clock
        self._due = 0.0
        self._moved: dict[_Move, _Moved] = {}

    def look(self) -> None:
        """Tell verifiers to hand sessions over, if it is time and pays."""
        now = self._clock.now()
        if now < self._due:
            return
        self._due = now + EVERY_S
        followed = {move: self._follow(move, moved) for move, moved in self._moved.items()}
        self._moved = {
            move: moved for move, moved in followed.items() if now - moved.at < NEVER_BACK_S or moved.lease is not None
        }
        for verifier in self._registry.verifiers:
            if verifier.leaving or verifier.hand_overs:  # one that does not listen is told nothing more
                continue
            gains = chain.from_iterable(self._gains(verifier, sampled) for sampled in TEXTS)
            gain, move = max(gains, default=(0.0, None), key=itemgetter(0))
            if move is not None and gain > 1:
                self._hand_over(move)

    def _follow(self, move: _Move, moved: _Moved) -> _Moved:
        """See what came of a move. Where nothing did, the session is counted where it was."""
        here, there = self._counts(move)
        if moved.gone or here < moved.here or there > moved.there or move.verifier.lost_because is not None:
            return moved._replace(gone=True, lease=None)
        heard = self._clock.now() - move.verifier.heard_at < EVERY_S
        if moved.lease is None or move.verifier.hand_overs or not heard:
            return moved
        if moved.looks + 1 < LOOKS:
            return moved._replace(looks=moved.looks + 1)
        if moved.lease.serving is move.target:  # it has not ended, nor gone elsewhere
            moved.lease.hand_over(move.source)
        return moved._replace(lease=None)

    def _gains(self, verifier: MemberState, sampled: bool) -> Iterator[tuple[float, _Move]]:
        """What a session would gain by going from one drafter to another, as a multiple of what it has to gain."""
        told = self._scorer.reports_on(verifier)
        if not told:
            return
        usable = [
            drafter for drafter in self._registry.usable_drafters if drafter.member_id not in verifier.cooling_down
        ]
        score = partial(self._scorer.score, verifier, sampled=sampled)
        there = [(drafter, score(drafter, more=1)) for drafter in usable if drafter.has_free_place]
        for source in usable:
            here = score(source)
            if here > 0 and self._scorer.report(verifier, source, sampled=sampled).sessions:  # 0: by rounding
                for target, gained in there:
                    move = _Move(verifier, source, target, sampled)
                    if self._is_open(move):
                        yield gained / (here if move.uneven else (1 + MARGIN) * here), move

    def _is_open(self, move: _Move) -> bool:
        """True if a session may go, none has come that way lately, and the last one that was sent has gone."""
        here, _ = self._counts(move)
        if not here or move.target is move.source or move.back in self._moved:
            return False
        last = self._moved.get(move)
        return last is None or last.gone

    def _counts(self, move: _Move) -> tuple[int, int]:
        """How many sessions may go, and how many such sessions the other drafter has."""
        pair = move.source, move.target
        here, there = (self._scorer.report(move.verifier, drafter, sampled=move.sampled) for drafter in pair)
        return here.movable if move.other_kind else here.sessions, there.sessions

    def _hand_over(self, move: _Move) -> None:
        verifier, source, target, sampled = move
        lease = self._leases.hand_over(verifier, source, target)
        self._moved[move] = _Moved(self._clock.now(), *self._counts(move), lease)
        verifier.hand_overs.append(HandOver(source.member_id, endpoint_of(target), 1, sampled, move.other_kind))
        self._registry.notify()
        told = fields(verifier=verifier.member_id, source=source.member_id, target=target.member_id, sampled=sampled)
        _log.info("a session is handed over to a better drafter", extra=told)

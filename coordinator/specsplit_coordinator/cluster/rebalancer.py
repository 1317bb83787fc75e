"""Moves running sessions to better drafters where the gain is clear: one at a time, and never back and forth."""

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
"""Seconds between two rounds. In a round each verifier is told to hand over one session at most."""
MARGIN = 0.25
"""What a session has to gain, as a share of its present score; an uneven spread over drafters of one kind needs no such gain."""
NEVER_BACK_S = 60.0
"""For so many seconds after a move no session of the verifier, and of the same kind of text, makes the opposite move; nor the same move,
if the verifier handed nothing over."""
LOOKS = 2
"""Rounds, counted from when a verifier was told, after which a session that it has not handed over counts as where it was."""


class _Move(NamedTuple):
    """A session of a verifier, sampled or greedy, goes from one drafter to another."""

    verifier: MemberState
    source: MemberState
    target: MemberState
    sampled: bool

    @property
    def opposite(self) -> _Move:
        return self._replace(source=self.target, target=self.source)

    @property
    def other_kind(self) -> bool:
        return kind_of(self.source) is not kind_of(self.target)

    @property
    def uneven(self) -> bool:
        """True if of two drafters of a kind one has more than twice the sessions that the other would have with one more."""
        return not self.other_kind and self.source.sessions > 2 * (self.target.sessions + 1)


class _Moved(NamedTuple):
    """The last order of a move: when it was given, how many sessions the two drafters had then, and what came of it."""

    at: float
    here: int
    there: int
    lease: Lease | None
    """The lease that counts at the target before it is known that a session has gone; None: there is none, or that is known."""
    gone: bool = False
    """True once a session was seen to have left the source, or to have come to the target."""
    looks: int = 0
    """Rounds in which the verifier had been told, and no session had gone."""


class Rebalancer:
    """Rebalances sessions over drafters. A session whose caller asked for a kind of drafter stays with that kind."""

    def __init__(self, registry: Registry, scorer: DrafterScorer, leases: Leases, clock: Clock) -> None:
        self._registry = registry
        self._scorer = scorer
        self._leases = leases
        self._clock = clock
        self._due = 0.0
        self._moved: dict[_Move, _Moved] = {}

    def rebalance(self) -> None:
        """Tell verifiers to hand sessions over where that pays, if it is time for another round."""
        now = self._clock.now()
        if now < self._due:
            return
        self._due = now + EVERY_S
        checked = {move: self._check(move, moved) for move, moved in self._moved.items()}
        self._moved = {
            move: moved for move, moved in checked.items() if now - moved.at < NEVER_BACK_S or moved.lease is not None
        }
        for verifier in self._registry.verifiers:
            if verifier.leaving or verifier.hand_overs:  # one that has yet to be told is told nothing more
                continue
            gains = chain.from_iterable(self._gains(verifier, sampled) for sampled in TEXTS)
            gain, move = max(gains, default=(0.0, None), key=itemgetter(0))
            if move is not None and gain > 1:
                self._hand_over(move)

    def _check(self, move: _Move, moved: _Moved) -> _Moved:
        """Check what came of a move. If nothing did, the session is counted at its source again."""
        here, there = self._counts(move)
        if moved.gone or here < moved.here or there > moved.there or move.verifier.lost_because is not None:
            return moved._replace(gone=True, lease=None)
        recent = self._clock.now() - move.verifier.last_seen_at < EVERY_S
        if moved.lease is None or move.verifier.hand_overs or not recent:
            return moved
        if moved.looks + 1 < LOOKS:
            return moved._replace(looks=moved.looks + 1)
        if moved.lease.serving is move.target:  # it has not ended, nor gone elsewhere
            moved.lease.hand_over(move.source)
        return moved._replace(lease=None)

    def _gains(self, verifier: MemberState, sampled: bool) -> Iterator[tuple[float, _Move]]:
        """Yield what a session would gain by each possible move, as a multiple of what it has to gain."""
        if not self._scorer.reports_on(verifier):
            return
        usable = [
            drafter for drafter in self._registry.usable_drafters if drafter.member_id not in verifier.cooling_down
        ]
        score = partial(self._scorer.score, verifier, sampled=sampled)
        there = [(drafter, score(drafter, more=1)) for drafter in usable if drafter.has_free_place]
        for source in usable:
            here = score(source)
            if here > 0 and self._scorer.report(verifier, source, sampled=sampled).sessions:  # rounding may make it 0
                for target, gained in there:
                    move = _Move(verifier, source, target, sampled)
                    if self._is_open(move):
                        yield gained / (here if move.uneven else (1 + MARGIN) * here), move

    def _is_open(self, move: _Move) -> bool:
        """True if a session may move, none has made the opposite move lately, and the last one that was told to make this move has."""
        here, _ = self._counts(move)
        if not here or move.target is move.source or move.opposite in self._moved:
            return False
        last = self._moved.get(move)
        return last is None or last.gone

    def _counts(self, move: _Move) -> tuple[int, int]:
        """Count the sessions that may move, and those of the same kind of text that the target has."""
        pair = move.source, move.target
        here, there = (self._scorer.report(move.verifier, drafter, sampled=move.sampled) for drafter in pair)
        return here.movable if move.other_kind else here.sessions, there.sessions

    def _hand_over(self, move: _Move) -> None:
        verifier, source, target, sampled = move
        lease = self._leases.hand_over(verifier, source, target)
        self._moved[move] = _Moved(self._clock.now(), *self._counts(move), lease)
        verifier.hand_overs.append(HandOver(source.member_id, endpoint_of(target), 1, sampled, move.other_kind))
        self._registry.notify()
        details = fields(verifier=verifier.member_id, source=source.member_id, target=target.member_id, sampled=sampled)
        _log.info("a session is handed over to a better drafter", extra=details)

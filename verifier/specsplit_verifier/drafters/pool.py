"""The drafters that sessions may use: which there are, which of them drafts for which session, and the handling of their messages.

Pure bookkeeping: every method returns the events to send, as (drafter address, session, event).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specsplit.draft_events import FeaturesRead, Refuse, ToDrafter, ToVerifier
from specsplit.errors import IllegalEvent, Incompatible, InvalidRequest, SpecsplitError
from specsplit.features import Features
from specsplit.membership import HandOver
from specsplit.records import DraftCounters
from specsplit.speculation import Commit, Grow
from specsplit.values import Endpoint, Host, Plan, Vocabulary
from specsplit_verifier.drafters.choice import spread, to_hand_over
from specsplit_verifier.drafters.memory import DrafterMemory
from specsplit_verifier.drafters.terms import Terms
from specsplit_verifier.records.events import FromDrafter, Sends
from specsplit_verifier.records.feed import FeatureSource, Overrun
from specsplit_verifier.records.step import Reroot
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.drafter_record import DrafterRecord, RecordKey
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.own_lookup import LOOKUP, Lookup
from specsplit_verifier.sessions.session import Session

_log = logging.getLogger(__name__)
RETRY_S = 1.0  # sessions that need a drafter are looked after this often
FOR_NOW = (8, 14)  # RESOURCE_EXHAUSTED, UNAVAILABLE: this drafter cannot now, another may
ELSEWHERE = (*FOR_NOW, 9)  # FAILED_PRECONDITION: this drafter never can
REFUSED_S = 30.0  # a drafter that could not take a session for now is asked again after so long


class DrafterPool:
    """Attaches drafters to sessions, and replaces those that are lost. Events for drafters wait for `outgoing`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_nodes: int,
        features: FeatureSource | None = None,
        host: Host | None = None,
        *,
        lookup: Lookup | None = None,
    ) -> None:
        """`host`: where the verifier computes, which drafters are told; None: they are not.

        `lookup`: drafts for sessions that no drafter serves, or beside drafters; None: those go without, but for what a grammar forces.
        """
        self._terms = Terms(vocabulary, max_nodes, features, host or Host())
        self._roster: Sequence[Endpoint] = ()
        self._lookup = lookup or Lookup(vocabulary, texts=False)
        self._memory = DrafterMemory()
        self._retry_at = 0.0
        self._openings = 0
        """Opens that were made, of all drafters: the streams get them in this order."""
        self.counters = DraftCounters()
        self._sends: Sends = []
        self._step_us = 0
        """The time from one step to the next that drafters get, in microseconds; 0: unknown."""

    def outgoing(self) -> Sends:
        """Take the events for drafters since the last call."""
        sends, self._sends = self._sends, []
        return sends

    def _tell(self, session: Session, *events: ToDrafter) -> None:
        """Have the drafter of a session sent events, behind what was kept back from it."""
        if events:
            told = (*session.drafter.kept_back(), *events)
            self._sends += [(session.drafter.address, session.id, event) for event in told]

    @property
    def records(self) -> Mapping[RecordKey, DrafterRecord]:
        """The record of every drafter; a copy, so that another thread may walk it."""
        return self._memory.records

    def replan(self, session: Session, plan: Plan, now: float) -> None:
        """Put a session under this plan from its next step on, and send it to its drafter. No step may be in flight."""
        if plan != session.plan:
            session.plan = plan
            self._tell(session, *session.drafter.replan(plan, now))

    def commit(
        self, made: Iterable[tuple[Session, Reroot]], step_us: int, floor: float = 0.0, rate: float = 0.0
    ) -> None:
        """Send the commits of a step to the drafters. step_us: expected microseconds until the next step; 0: unknown.

        floor: survival below which the step had no use for a node; 0: it takes what it can get.
        rate: tokens that are committed per second lately; 0: unknown.
        Drafters that were told to rest get theirs later.
        """
        self._step_us = step_us
        self._lookup.floor, self._lookup.price.rate = floor, rate
        for session, reroot in made:
            for made_commit in reroot.commits:
                number, deepest, tokens = made_commit.number, made_commit.deepest, made_commit.tokens
                commit = Commit(number, deepest, tokens, step_us, session.drafter.seen, floor)
                if session.plan.speculates or not session.drafter.keep_back(commit, rested=reroot.rested):
                    self._tell(session, commit)

    def resume(self, session: Session, now: float) -> None:
        """Attach a drafter to a session that begins to run, or whose plan has changed, if it has use for one and none yet.

        That is the one of its request if possible, so that not all of them go to the first of the roster.
        """
        wished = session.request.drafter
        if wished is None or not session.needs_drafter or session.refused_by(wished.address, now):
            self._replace(session, now)
        else:
            self.attach(session, wished, now)

    def attach(self, session: Session, drafter: Endpoint, now: float) -> None:
        """Attach a drafter to a session from its present root on; if it cannot draft for it, another; none, for now, if there is none.

        One that was just lost cannot, nor one whose need for features cannot be met: the log says why.
        """
        if not self._open(session, drafter, now):
            self._replace(session, now)

    def _open(self, session: Session, drafter: Endpoint, now: float) -> bool:
        """Try to attach a drafter; False if that is impossible."""
        address, sampled = drafter.address, session.sampled
        if self._memory.cools_down(address, now):
            return False
        try:
            feed = self._terms.feed(session, drafter.features)
        except Incompatible as error:
            _log.warning("session %d: drafter %s does not fit: %s", session.id, address, error)
            session.refused_until[address] = math.inf
            return False
        wait_policy, record = self._memory.recall(address, sampled)
        beside = None
        if self._lookup.drafts_beside and not session.refused_by(LOOKUP, now):
            beside = self._lookup.beside(session, address, self._memory.recall(LOOKUP, sampled)[1])
        self._openings += 1
        attached = DraftSession(
            address,
            self._terms.mirror(session),
            wait_policy,
            feed,
            self.counters,
            record,
            beside,
            movable=session.request.any_drafter,
            opening=self._openings,
        )
        session.drafter.close()
        session.drafter = attached
        opening = self._terms.opening(session, feed, self._step_us)
        self._tell(session, opening, *attached.begin(len(session.tokens) - 1, now))
        return True

    def _replace(self, session: Session, now: float) -> None:
        """Attach another drafter, if the session has use for one, and one is there that has not refused it and does not cool down.

        If not, the verifier looks up for it.
        """
        if not session.needs_drafter or not self._open_any(session, now):
            self._look_up(session, now)

    def _look_up(self, session: Session, now: float) -> None:
        """Draft for a session by lookup, if this verifier does that, nobody else drafts for it, and its caller wants drafts."""
        if not self._lookup.drafts_for(session) or session.drafter.attached or session.refused_by(LOOKUP, now):
            return
        if session.wants_drafts:
            session.drafter = self._lookup.begin(session, self._memory.recall(LOOKUP, session.sampled)[1])

    def _open_any(self, session: Session, now: float) -> bool:
        """Try to attach some drafter; False if none is there that can."""
        wished = session.request.drafter
        there = [drafter for drafter in self._roster if self._may_try(session, drafter, now)]
        there = spread(there, self._memory.records, sampled=session.sampled)
        for drafter in [*there, *([wished] if wished and self._may_try(session, wished, now) else [])]:
            if self._open(session, drafter, now):
                if wished is None:  # it was left to the verifier; it comes back to that one, should it be preempted
                    session.request = replace(session.request, drafter=drafter)
                else:
                    self.counters.failovers += 1
                return True
        return False

    def _may_try(self, session: Session, drafter: Endpoint, now: float) -> bool:
        return not session.refused_by(drafter.address, now) and not self._memory.cools_down(drafter.address, now)

    def rest_heads(self) -> None:
        """The target has other weights: use no head that is there now, until it has others too, is lost or leaves. No session may have a
        drafter.
        """
        self._memory.rest(each for each in self._roster if each.features)

    def retry(self, running: Iterable[Session], now: float) -> None:
        """Look for sessions that need a drafter, from time to time and, where they are looked up for, when one was detached.

        Only between steps: a mirror begins with no step in flight.
        """
        if now >= self._retry_at:
            self._retry_at = now + RETRY_S
            for session in running:
                self._replace(session, now)

    def roster(self, drafters: Sequence[Endpoint], running: Iterable[Session], now: float) -> None:
        """Take in which drafters there are now, and attach them to sessions that need one."""
        self._roster = drafters
        self._memory.there(drafters)
        for session in running:
            self._replace(session, now)

    def lost(self, address: str, running: Iterable[Session], now: float) -> None:
        """Detach a drafter that is gone: its sessions get another, or go on without."""
        self._memory.lost(address, now)
        for session in running:
            if session.drafter.address == address:
                self._detach(session, needed=True)  # it may have been opened on the next stream already
                self._replace(session, now)

    def hand_over(self, order: HandOver, running: Iterable[Session], now: float) -> None:
        """Move some sessions of a drafter, greedy or sampled, to another.

        They stay where they are if the other was just lost, or needs features that the target does not give.
        """
        if self._memory.cools_down(order.target.address, now) or not self._feeds(order.target):
            return
        for session in to_hand_over(order, running, now):
            self._detach(session, needed=True)
            # It comes back to that one, should it be preempted.
            session.request = replace(session.request, drafter=order.target)
            self._open(session, order.target, now)
            self.counters.hand_overs += 1

    def _feeds(self, drafter: Endpoint) -> bool:
        try:
            self._terms.recipe(drafter.features)
        except Incompatible as error:
            _log.warning("sessions are not handed over to drafter %s, which does not fit: %s", drafter.address, error)
            return False
        return True

    def received(self, message: FromDrafter, running: Mapping[int, Session], now: float) -> None:
        """Take in a drafter's message; its grows are applied later. What breaks the protocol ends drafting for its own session only."""
        for number, event in message.events:
            session = running.get(number)
            drafter = None if session is None else session.drafter.at(message.address)
            # It may have crossed with the session's end, or with another opening of it.
            if session is None or drafter is None or drafter.opening > message.openings:
                self.counters.late_nodes += len(event.ids) if isinstance(event, Grow) else 0
            else:
                self._received(session, drafter, event, now)

    def _received(
        self, session: Session, drafter: DraftSession, event: ToVerifier | InvalidRequest, now: float
    ) -> None:
        try:
            if isinstance(event, Grow):
                drafter.grow(event, now)
                if drafter.urgent:
                    drafter.apply_grows(session.tree_limits, prefilling=session.prefilling)
                return
            drafter.apply_grows(session.tree_limits, prefilling=session.prefilling)
            match event:
                case FeaturesRead():
                    read = drafter.read(event.position, now, prefilling=session.prefilling)
                    self._tell(session, *read)
                case Refuse():
                    self._refused(session, drafter.address, event, now)
                case InvalidRequest():
                    raise event
        except (IllegalEvent, InvalidRequest) as error:
            self._give_up(session, "is out of step", error)

    def apply_grows(self, running: Iterable[Session]) -> None:
        """Apply grows to the mirrors. What breaks the protocol ends drafting for its own session only."""
        for session in running:
            if session.drafter.grows_queued:
                try:
                    session.drafter.apply_grows(session.tree_limits, prefilling=session.prefilling)
                except IllegalEvent as error:
                    self._give_up(session, "is out of step", error)

    def _refused(self, session: Session, address: str, refusal: Refuse, now: float) -> None:
        _log.warning("session %d: drafter %s refused: %s", session.id, address, refusal.message)
        session.refused_until[address] = now + REFUSED_S if refusal.code in FOR_NOW else math.inf
        # It is closed all the same: what had crossed with the refusal on its way there ends with that.
        self._detach(session, needed=refusal.code in ELSEWHERE)

    def computed(self, session: Session, features: Features, now: float) -> None:
        """Take in features of a session that a step computed, and send those that may be sent now.

        A drafter that reads too slowly for what may be kept loses the session, which goes on without drafts.
        """
        try:
            self._tell(session, *session.drafter.computed(features, now, prefilling=session.prefilling))
        except Overrun as error:
            self._give_up(session, "is too slow", error)

    def give_up(self, session: Session, error: SpecsplitError) -> None:
        """Drop the drafts of a session, which goes on without those of whoever made them."""
        if session.drafter.attached:
            session.refused_until[session.drafter.address] = math.inf
            self._give_up(session, "drafted what the target cannot compute", error)

    def suspend(self, session: Session) -> None:
        """Detach the drafter of a session that stops running for a while.

        Features are computed again with the KV of their tokens, so none are kept.
        """
        needed = session.drafter.served or session.drafter.needed
        self._detach(session, needed=needed)
        session.drafter = NoDrafter(needed=needed)

    def close(self, session: Session) -> None:
        """Close a session that is over at its drafter."""
        self._detach(session, needed=False)
        self._lookup.ended(session)

    def _give_up(self, session: Session, what: str, error: SpecsplitError) -> None:
        address = session.drafter.address
        _log.warning("session %d: drafter %s %s, going on without drafts: %s", session.id, address, what, error)
        self._detach(session, needed=False)

    def _detach(self, session: Session, *, needed: bool) -> None:
        """Detach the drafter. Features that are kept wait for the next drafter, if there may be one."""
        if session.drafter.attached:
            self._tell(session, *session.drafter.close())
            session.drafter = NoDrafter(needed=needed, feed=session.drafter.feed if needed else None)
            if self._lookup.drafts_for(session):
                self._retry_at = 0.0  # not here: a step may be in flight

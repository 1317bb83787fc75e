"""The sessions' side of their drafters: who drafts for whom, what a grow or a loss means, and how long to wait for each.

Pure bookkeeping on the engine thread: every method returns the events to send, as (drafter address, session, event).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specsplit.errors import IllegalEvent, Incompatible, InvalidRequest
from specsplit.features import FeatureNeed, Features
from specsplit.sessions import Close, FeaturesRead, Refuse
from specsplit.speculation import Grow, Mirror, State
from specsplit.values import Endpoint, Vocabulary
from specsplit_verifier.events import FromDrafter, Sends
from specsplit_verifier.feed import FeatureSource, Feed, Overrun
from specsplit_verifier.patience import Patience, Wait
from specsplit_verifier.session import Session

_log = logging.getLogger(__name__)
SHUNNED_S = 5.0  # a lost drafter is not tried again for so long
RETRY_S = 1.0  # orphans are looked after this often
ELSEWHERE = (8, 9, 14)  # RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNAVAILABLE: this drafter cannot, another may


@dataclass(slots=True)
class Toll:
    """What was lost to drafters, and how long they took, since the step before."""

    unverified_nodes: int = 0
    """Left when a session, or its drafter, went."""
    late_nodes: int = 0
    """Came when their place in the tree, or all of it, was gone."""
    failovers: int = 0
    """Sessions that were given another drafter."""
    round_trips_s: list[float] = field(default_factory=list[float])
    """From a commit to the first grow made after it."""


class Drafting:
    """Which drafters are usable, and how each has behaved."""

    def __init__(self, vocabulary: Vocabulary, max_nodes: int, features: FeatureSource | None = None) -> None:
        self._vocabulary = vocabulary
        self._max_nodes = max_nodes
        self._features = features
        self._roster: Sequence[Endpoint] = ()
        self._shunned_until: dict[str, float] = {}
        self._retry_at = 0.0
        self.patience: dict[str, Patience] = {}
        """By drafter address."""
        self._toll = Toll()

    def take_toll(self) -> Toll:
        """Since this was last asked."""
        toll, self._toll = self._toll, Toll()
        return toll

    def admit(self, session: Session, now: float) -> Sends:
        """A session begins to run: it gets the drafter of its request, if it has use for one now."""
        if session.request.drafter is None:
            return []
        session.orphan = not session.plan.speculates
        return [] if session.orphan else self.attach(session, session.request.drafter, now)

    def resume(self, session: Session, now: float) -> Sends:
        """The plan of a running session has changed: if it has use for a drafter now and none yet, it gets one.

        That is the one of its request if possible, so that not all of them go to the first of the roster.
        """
        wished = session.request.drafter
        if not session.orphan or not session.plan.speculates:
            return []
        if wished is None or wished.address in session.refused_by:
            return self._replace(session, now)
        return self.attach(session, wished, now)

    def attach(self, session: Session, drafter: Endpoint, now: float) -> Sends:
        """Let a drafter grow for a session from its present root on; if it cannot, another; an orphan if there is none.

        One that was just lost cannot, nor one whose need for features cannot be met: the log says why.
        """
        return self._open(session, drafter, now) or self._replace(session, now)

    def _open(self, session: Session, drafter: Endpoint, now: float) -> Sends:
        """Nothing if it cannot be attached."""
        if self._shunned_until.get(drafter.address, -math.inf) > now:
            return []
        try:
            feed = self._feed(session, drafter.features)
        except Incompatible as error:
            _log.warning("session %d: drafter %s does not fit: %s", session.id, drafter.address, error)
            session.refused_by.add(drafter.address)
            return []
        root = len(session.tokens) - 1
        mirror = Mirror(session.id, session.tokens[-1], root, self._max_nodes, self._vocabulary.size)
        session.attach(drafter.address, mirror, feed)
        session.wait = Wait()
        session.wait.begin(now)
        self.patience.setdefault(drafter.address, Patience())
        opened: Sends = [(drafter.address, session.id, session.open_event(self._vocabulary, self._max_nodes))]
        return opened + (self._send(session, feed.attach(root), now) if feed is not None else [])

    def _feed(self, session: Session, need: FeatureNeed) -> Feed | None:
        if not need:
            return None
        if self._features is None:
            raise Incompatible(f"it needs features ({need}), and this verifier makes none")
        return self._features.feed(need, session.feed, session.kv_length)

    def _replace(self, session: Session, now: float) -> Sends:
        """Another drafter for an orphan that has use for one, if there is one that has not refused it and was not lost a moment ago."""
        session.orphan = True
        if not session.plan.speculates:
            return []
        wished = session.request.drafter
        for drafter in [*self._roster, *([wished] if wished else [])]:
            sends = [] if drafter.address in session.refused_by else self._open(session, drafter, now)
            if sends:
                self._toll.failovers += 1
                return sends
        return []

    def retry(self, running: Iterable[Session], now: float) -> Sends:
        """Now and then, look again for orphans. Only between steps: a mirror begins with no step in flight."""
        if now < self._retry_at:
            return []
        self._retry_at = now + RETRY_S
        self._shunned_until = {address: until for address, until in self._shunned_until.items() if until > now}
        return [send for session in running if session.orphan for send in self._replace(session, now)]

    def grown(self, message: FromDrafter, running: Mapping[int, Session], now: float) -> Sends:
        """Apply a drafter's message. One that breaks the protocol ends drafting for its own session only."""
        sends: Sends = []
        for session_id, event in message.events:
            session = running.get(session_id)
            if session is None or session.drafter != message.address or session.mirror is None:
                self._toll.late_nodes += len(event.ids) if isinstance(event, Grow) else 0
                continue  # crossed with the session's end
            match event:
                case Grow():
                    sends += self._grow(session, session.mirror, event, now)
                case FeaturesRead():
                    sends += self._read(session, event, now)
                case Refuse():
                    _log.warning("session %d: drafter %s refused: %s", session_id, message.address, event.message)
                    sends += self.close(session)  # what had crossed with the refusal on its way there ends with this
                    session.refused_by.add(message.address)
                    session.detach(orphan=event.code in ELSEWHERE)
                case InvalidRequest():
                    sends += self.give_up(session, event)
        return sends

    def _grow(self, session: Session, mirror: Mirror, grow: Grow, now: float) -> Sends:
        seen, first = mirror.acknowledged, not mirror.caught_up
        try:
            self._toll.late_nodes += len(grow.ids) - mirror.grow(grow)
        except IllegalEvent as error:
            return self.give_up(session, error)
        if session.catching_up and not grow.ids:
            mirror.stir()  # it rests for want of features, which are on their way
        if session.drafter is not None:
            self._learn(session, mirror, self.patience[session.drafter], mirror.acknowledged - seen, first, now)
        return []

    def _read(self, session: Session, event: FeaturesRead, now: float) -> Sends:
        try:
            if session.feed is None:
                raise InvalidRequest("features_read", "it was sent no features")
            return self._send(session, session.feed.acknowledge(event.position), now)
        except InvalidRequest as error:
            return self.give_up(session, error)

    def computed(self, session: Session, features: Features, now: float) -> Sends:
        """A step computed features of a session, new ones or some that its drafter lacked: what may be sent now.

        A drafter that reads too slowly for what may be kept loses the session, which goes on without drafts.
        """
        if session.feed is None:
            return []
        try:
            return self._send(session, session.feed.add(features), now)
        except Overrun as error:
            _log.warning(
                "session %d: drafter %s is too slow, going on without drafts: %s", session.id, session.drafter, error
            )
            sends = self.close(session)
            session.detach(orphan=False)
            return sends

    def _send(self, session: Session, features: Sequence[Features], now: float) -> Sends:
        """Features leave for the drafter. When they are the last that it needs for a first grow, the wait for that begins."""
        if not features or session.drafter is None or session.mirror is None:
            return []
        session.mirror.stir()
        if session.mirror.commits == 0 and not session.prefilling and not session.starved:
            session.wait.begin(now)
        return [(session.drafter, session.id, event) for event in features]

    def _learn(
        self, session: Session, mirror: Mirror, patience: Patience, answered: int, first: bool, now: float
    ) -> None:
        made = session.wait.answered(answered)
        if made is not None:
            self._toll.round_trips_s.append(now - made)
        if session.catching_up:
            return  # what it does now says nothing about how it answers a commit
        if not mirror.caught_up:
            if made is not None:
                patience.late_grow(now - made)
        elif not session.prefilling and (first or mirror.state is State.READY):
            observe = patience.first_grow if first else patience.later_grow
            observe(session.wait, now, session.preview().expected_length)

    def give_up(self, session: Session, error: Exception) -> Sends:
        """What was drafted is of no use: the session goes on without drafts."""
        _log.warning("session %d: going on without drafts of %s: %s", session.id, session.drafter, error)
        sends = self.close(session)
        session.detach(orphan=False)
        return sends

    def lost(self, address: str, running: Iterable[Session], now: float) -> Sends:
        """A drafter is gone: its sessions get another, or go on without."""
        self._shunned_until[address] = now + SHUNNED_S
        self.patience.pop(address, None)
        sends: Sends = []
        for session in running:
            if session.drafter == address:
                sends += self.close(session)  # it may have been opened on the next stream already
                session.detach(orphan=True)
                sends += self._replace(session, now)
        return sends

    def roster(self, drafters: Sequence[Endpoint], running: Iterable[Session], now: float) -> Sends:
        """These are the drafters now; orphans get one."""
        self._roster = drafters
        return [send for session in running if session.orphan for send in self._replace(session, now)]

    def committed(self, session: Session, hit: bool, now: float) -> None:
        """A commit was made: from now on time is counted towards the next grow."""
        session.wait.restart(now, hit, session.preview().expected_length)

    def stepping(self, sessions: Iterable[Session], now: float) -> None:
        """These sessions are about to step: note for whom waiting brought nothing."""
        for session in sessions:
            if session.mirror is None or session.drafter is None or session.catching_up:
                continue
            if not session.mirror.caught_up:
                self.patience[session.drafter].in_vain(session.wait, now)

    def close(self, session: Session) -> Sends:
        """Tell the drafter, if there is one, that the session is over. What it has grown is lost."""
        self._toll.unverified_nodes += session.untaken
        return [] if session.drafter is None else [(session.drafter, session.id, Close())]

"""Every session of one drafter, without threads or gRPC: events in, grows and refusals out, one expansion at a time.

An event that is wrong ends its own session and no other. A session that ended here may still have events on the way: they are let pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from specsplit.errors import Exhausted, IllegalEvent, InvalidRequest, SpecsplitError, Unavailable
from specsplit.features import FeatureLayout, Features
from specsplit.sessions import Close, FeaturesRead, Open
from specsplit.speculation import Commit, Grow, Original
from specsplit.wire.common import check_tokens
from specsplit_drafter.calibration import Calibrations
from specsplit_drafter.growth import Growth, GrowthLimits, choose
from specsplit_drafter.isolation import error_of
from specsplit_drafter.proposer import Children, FrontierNode, Proposer, SessionKey
from specsplit_drafter.rounds import Rounds

_log = logging.getLogger(__name__)

SessionEvent: TypeAlias = Open | Commit | Features | Close | InvalidRequest
"""What a stream brings for a session; InvalidRequest stands for an event that could not be read."""
Answer: TypeAlias = Grow | FeaturesRead | SpecsplitError
"""What a verifier is told of a session; an error ends it."""
Outgoing: TypeAlias = dict[int, list[tuple[int, Answer]]]
"""By stream: (session id, answer) in order."""
Pace: TypeAlias = Callable[[int], AbstractContextManager[None]]
"""Given the nodes of an expansion, what the expansion happens inside of: a paced device waits there."""


def unpaced(num_nodes: int) -> AbstractContextManager[None]:
    """As fast as it goes."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class _Desk:
    growth: Growth
    vocab_size: int
    features: FeatureLayout


class Board:
    """The sessions, the proposer and what is to be sent. Not thread-safe."""

    def __init__(self, proposer: Proposer, limits: GrowthLimits, max_sessions: int, pace: Pace = unpaced) -> None:
        self.proposer = proposer
        self.calibrations = Calibrations()
        self.rounds = Rounds()
        """Told of what happens to sessions; to be set before there are any, if some are to be traced."""
        self.frontier: Sequence[FrontierNode] = ()
        """Nodes of the latest expansion."""
        self.draining = False
        """True: no new sessions."""
        self.expanded_nodes = 0
        self.pushed_nodes = 0
        self.commits = 0
        self.committed_nodes = 0
        """Nodes that these accepted."""
        self._limits = limits
        self._max_sessions = max_sessions
        self._pace = pace
        self._desks: dict[SessionKey, _Desk] = {}
        self._ended: set[SessionKey] = set()
        self._refusals: list[tuple[SessionKey, SpecsplitError]] = []

    @property
    def num_sessions(self) -> int:
        """Open sessions."""
        return len(self._desks)

    def growth_of(self, session: SessionKey) -> Growth:
        """One open session's growth. KeyError if there is none."""
        return self._desks[session].growth

    def handle(self, session: SessionKey, event: SessionEvent) -> None:
        """One event of one session. What is wrong with it ends the session and goes out as a refusal."""
        try:
            self._handle(session, event)
        except SpecsplitError as error:
            self._end(session, error)
        except Exception as error:  # noqa: BLE001 (an event belongs to one session, and so does what it breaks)
            _log.exception("session %d of stream %d: an event of it failed", session[1], session[0])
            self._end(session, error_of(error))

    def lose(self, stream: int) -> None:
        """A stream is over: so are its sessions."""
        for session in [session for session in self._desks if session[0] == stream]:
            self._free(session, "the stream of its verifier is over")
        self._ended = {session for session in self._ended if session[0] != stream}
        self._refusals = [refusal for refusal in self._refusals if refusal[0][0] != stream]

    def refuse_all(self, error: SpecsplitError) -> None:
        """End every session with the same error."""
        for session in list(self._desks):
            self._end(session, error)

    def step(self) -> int:
        """One expansion of the likeliest nodes of all sessions; how many nodes it had. 0: every session rests.

        A session for which it failed ends.
        """
        chosen = choose((desk.growth for desk in self._desks.values()), self._limits.expand_width, self.proposer.room)
        if not chosen:
            return 0
        sessions = {id(desk.growth): session for session, desk in self._desks.items()}
        taken: dict[SessionKey, list[int]] = {}
        for growth, slot in chosen:
            taken.setdefault(sessions[id(growth)], []).append(slot)
        frontier = self.frontier = [
            node for session, slots in taken.items() for node in self.growth_of(session).frontier(session, slots)
        ]
        self.rounds.expanding(frontier, self.proposer.pending)
        with self._pace(len(frontier)):
            expansions = iter(self.proposer.expand(frontier))
        self.rounds.read(self.proposer.pending)
        for session, slots in taken.items():
            self._expanded(session, list(zip(slots, expansions, strict=False)))
        return len(chosen)

    def _expanded(
        self, session: SessionKey, expansions: Sequence[tuple[int, Children | SpecsplitError | None]]
    ) -> None:
        """What an expansion brought for one session's nodes (slots). An error ends the session, and no other."""
        growth = self.growth_of(session)
        broods: list[tuple[int, Children]] = []
        for slot, children in expansions:
            if isinstance(children, SpecsplitError):
                self._end(session, children)
                return
            if children is not None:
                broods.append((slot, children))
        if len(broods) < len(expansions):
            growth.postponed()
            growth.stalled = self.proposer.stalled(session)
        if broods:
            growth.expanded(broods)
            self.expanded_nodes += len(broods)
            self.rounds.expanded(session, len(broods))

    def outgoing(self) -> Outgoing:
        """What the verifiers have not been told yet."""
        out: Outgoing = {}
        for session, event in self._untold():
            out.setdefault(session[0], []).append((session[1], event))
        return out

    def _untold(self) -> Iterator[tuple[SessionKey, Answer]]:
        yield from self._refusals
        self._refusals = []
        for session, position in self.proposer.take_read():
            yield session, FeaturesRead(position)
        for session, desk in self._desks.items():
            for grow in desk.growth.flush():
                self.pushed_nodes += len(grow.ids)
                self.rounds.sent(session, grow)
                yield session, grow

    def _handle(self, session: SessionKey, event: SessionEvent) -> None:
        if session in self._ended:
            if isinstance(event, Close):
                self._ended.discard(session)
            return
        match event:
            case Open():
                self._open(session, event)
            case Commit():
                self._commit(session, event)
            case Features():
                self._feed(session, event)
            case Close():
                self._free(session)
            case _:
                raise event

    def _open(self, session: SessionKey, event: Open) -> None:
        if session in self._desks:
            raise IllegalEvent(session[1], "growing", "open", "it is open already")
        if self.draining:
            raise Unavailable("the drafter is draining and takes no new sessions")
        if len(self._desks) >= self._max_sessions:
            raise Exhausted(f"the drafter has {len(self._desks)} sessions open, its limit")
        info = self.proposer.info
        info.require_fit(event.vocabulary)
        info.features.require_fit(event.features)
        if len(event.tokens) > info.max_context:
            raise InvalidRequest(
                "open.token_ids", f"has {len(event.tokens)} tokens; the drafter's context is {info.max_context}"
            )
        original = Original(session[1], event.tokens[-1], len(event.tokens) - 1, event.max_nodes)
        calibration = self.calibrations.of(event.sampling.greedy)
        growth = Growth(
            original,
            event.plan,
            self._limits,
            calibration,
            info.max_context,
            max_depth=self.proposer.max_depth,
            renews_root=self.proposer.renews_root,
        )
        # last: nothing must fail that would have to close it again
        self.proposer.open(session, event.tokens, event.sampling, event.prompt_tokens)
        growth.stalled = self.proposer.stalled(session)
        self._desks[session] = _Desk(growth, event.vocabulary.size, event.features)
        self.rounds.opened(session, event.traceparent)

    def _desk(self, session: SessionKey, event: str) -> _Desk:
        desk = self._desks.get(session)
        if desk is None:
            raise IllegalEvent(session[1], "closed", event, "it was never opened on this stream")
        return desk

    def _feed(self, session: SessionKey, event: Features) -> None:
        desk = self._desk(session, "features")
        self.proposer.feed(session, event, desk.features)
        desk.growth.stalled = self.proposer.stalled(session)

    def _commit(self, session: SessionKey, event: Commit) -> None:
        desk = self._desk(session, "commit")
        check_tokens("commit.token_ids", event.tokens, desk.vocab_size)
        advance = desk.growth.commit(event)
        self.commits += 1
        self.committed_nodes += len(advance.accepted)
        self.rounds.committed(session, event.number)
        self.proposer.commit(session, advance)
        desk.growth.stalled = self.proposer.stalled(session)
        if desk.growth.original.tree.root.position + 1 >= self.proposer.info.max_context:
            raise Exhausted(f"the session fills the drafter's context of {self.proposer.info.max_context} tokens")

    def _end(self, session: SessionKey, error: SpecsplitError) -> None:
        self._free(session, str(error))
        self._ended.add(session)
        self._refusals.append((session, error))

    def _free(self, session: SessionKey, error: str | None = None) -> None:
        desk = self._desks.pop(session, None)
        if desk is not None:
            self.proposer.close(session)
            desk.growth.original.close()
            self.rounds.closed(session, error)

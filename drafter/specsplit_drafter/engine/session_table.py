"""Every session of one drafter, without threads or gRPC: events in, grows and refusals out, one expansion at a time.

An event that is wrong ends its own session and no other. A session that ended here may still have events on the way: they are let pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from specsplit.clock import Clock
from specsplit.draft_events import Close, FeaturesRead, Open, ToDrafter
from specsplit.errors import Exhausted, IllegalEvent, Incompatible, InvalidRequest, SpecsplitError, Unavailable
from specsplit.features import FeatureLayout, Features
from specsplit.speculation import Commit, Grow, Original
from specsplit.tree import Ints
from specsplit.values import Host, Plan
from specsplit.wire.common import check_tokens
from specsplit_drafter.drafts.calibration import Calibrations
from specsplit_drafter.drafts.proposer import (
    LEAST_LEVEL_WIDTH,
    Children,
    ExpansionOutcome,
    FrontierPart,
    Proposer,
    SessionKey,
    WholeTree,
)
from specsplit_drafter.engine.rounds import Rounds
from specsplit_drafter.growth.cost import ExpansionCost, expansions_per_message
from specsplit_drafter.growth.cost_benefit import CostBenefit
from specsplit_drafter.growth.growth import Growth, choose
from specsplit_drafter.growth.usage import Usage
from specsplit_drafter.kinds.isolation import error_of

_log = logging.getLogger(__name__)

SessionEvent: TypeAlias = ToDrafter | InvalidRequest
"""What a stream brings for a session; InvalidRequest stands for an event that could not be read."""
Answer: TypeAlias = Grow | FeaturesRead | SpecsplitError
"""An answer of a session to its verifier; an error ends the session."""
Outgoing: TypeAlias = dict[int, list[tuple[int, Answer]]]
"""By stream: (session id, answer) in order."""
Pace: TypeAlias = Callable[[int], AbstractContextManager[None]]
"""Given the number of nodes of an expansion: a context to expand in, in which a paced device waits."""


def unpaced(num_nodes: int) -> AbstractContextManager[None]:
    """Expand as fast as the model goes."""
    return nullcontext()


@dataclass(frozen=True)
class TableLimits:
    """What bounds a drafter's work."""

    max_sessions: int = 64
    """Taken at once."""

    expand_width: int = 256
    """Nodes in one expansion at most, all sessions together."""
    node_us: float = 1.0
    """The least price of a node: the time to send and to apply it, in microseconds."""
    expand_levels: int = 1
    """Levels that one expansion draws at most."""
    host: Host = field(default_factory=Host)
    """Where the drafter computes; verifiers tell where they do."""


@dataclass(frozen=True, slots=True)
class _Session:
    growth: Growth
    vocab_size: int
    features: FeatureLayout


@dataclass(slots=True)
class DraftCounts:
    """What has been done since start."""

    expanded_nodes: int = 0
    """Roots included."""
    pushed_nodes: int = 0
    commits: int = 0
    """Applied."""
    committed_nodes: int = 0
    """Nodes that these accepted."""
    updates: int = 0
    """Other weights that the model got."""
    usage: Usage = field(default_factory=Usage)
    """Expansions, and those that were used."""


class SessionTable:
    """The sessions, the proposer and the answers that wait to be sent. Not thread-safe."""

    def __init__(self, proposer: Proposer, limits: TableLimits, clock: Clock, pace: Pace = unpaced) -> None:
        self.proposer = proposer
        self.calibrations = Calibrations(proposer.distances)
        self.rounds = Rounds()
        """The records of traced sessions; set before there are any sessions, if some are to be traced."""
        self.draining = False
        """True if new sessions are refused."""
        self.counts: Final = DraftCounts()
        self.expansion_cost: Final = ExpansionCost()
        """The cost of expansions; whoever calls `expand` has it observe the time."""
        self._limits = limits
        self._pace = pace
        self._clock = clock
        self._sessions: dict[SessionKey, _Session] = {}
        self._ended: set[SessionKey] = set()
        self._refusals: list[tuple[SessionKey, SpecsplitError]] = []

    @property
    def num_sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def growth_of(self, session: SessionKey) -> Growth:
        """Look up the growth of an open session; KeyError if there is none."""
        return self._sessions[session].growth

    def handle(self, session: SessionKey, event: SessionEvent) -> None:
        """Handle one event of one session. An error ends the session, and goes out as a refusal."""
        try:
            self._handle(session, event)
        except SpecsplitError as error:
            self._end(session, error)
        except Exception as error:  # noqa: BLE001 (an event belongs to one session, and so does what it breaks)
            _log.exception("session %d of stream %d: an event of it failed", session[1], session[0])
            self._end(session, error_of(error))

    def close_stream(self, stream: int) -> None:
        """Close the sessions of a stream that is over."""
        for session in [session for session in self._sessions if session[0] == stream]:
            self._free(session, "the stream of its verifier is over")
        self._ended = {session for session in self._ended if session[0] != stream}
        self._refusals = [refusal for refusal in self._refusals if refusal[0][0] != stream]

    def refuse_all(self, error: SpecsplitError) -> None:
        """End every session with the same error."""
        for session in list(self._sessions):
            self._end(session, error)

    def forget_calibrations(self) -> None:
        """Learn anew what drafts are worth, for sessions that begin from now on; those that are open keep what they began with."""
        self.calibrations = Calibrations(self.proposer.distances)

    def expand(self) -> int:
        """Expand the likeliest nodes of all sessions together -> how many they were; 0 if every session rests.

        A session for which that failed ends.
        """
        keys = {id(state.growth): session for session, state in self._sessions.items()}
        growths = (state.growth for state in self._sessions.values())
        chosen = choose(growths, self._limits.expand_width, self.proposer.free_kv_slots, self.expansion_cost.line)
        if not chosen:
            return 0
        levels = self._levels(chosen)
        width = self._level_width(chosen) if levels > 1 or self.proposer.drafts_blocks else 0
        frontier = self.expansion_cost.frontier = [
            FrontierPart(
                keys[id(growth)],
                slots,
                growth.scoring(slots, width) if width else None,
                growth.cost_benefit.step_floor,
            )
            for growth, slots in chosen
        ]
        num_nodes = sum(len(part.slots) for part in frontier)
        pending = self._pending(frontier)
        self.rounds.expanding([part.session for part in frontier], self.proposer.pending)
        with self._pace(num_nodes):
            expansions = self.proposer.expand(frontier, levels)
        self.rounds.read(self.proposer.pending)
        of_their_own = 1 if self.proposer.drafts_blocks else _levels_of(expansions)
        self.expansion_cost.levels, self.expansion_cost.useful_levels = of_their_own, 0
        if any(isinstance(found, Children | WholeTree) for found in expansions):
            self.counts.usage.begin()
        self.expansion_cost.rows = num_nodes + pending - self._pending(frontier)
        for part, expansion in zip(frontier, expansions, strict=True):
            try:
                self._expanded(part, expansion)
            except Exception as error:  # noqa: BLE001 (what was drafted belongs to one session, and so does what it breaks)
                _log.exception("session %d of stream %d: what it drafted is no tree", part.session[1], part.session[0])
                self._end(part.session, error_of(error))
        return num_nodes

    @property
    def expansions_per_message(self) -> int:
        """How many expansions to make before their nodes are sent."""
        steps_s = [state.growth.cost_benefit.step_s for state in self._sessions.values()]
        return expansions_per_message(min(steps_s, default=0.0), self.expansion_cost.mean_s)

    def _levels(self, chosen: Sequence[tuple[Growth, Ints]]) -> int:
        """Choose how many levels to draw."""
        most = min(self._limits.expand_levels, self.proposer.max_levels)
        if most == 1:
            return 1
        most = min(most, *(growth.levels_below(slots) for growth, slots in chosen))
        steps_s = [growth.cost_benefit.step_s for growth, _ in chosen if growth.plan.draft_ahead]
        alone_s = self.expansion_cost.line.seconds(sum(len(slots) for _, slots in chosen))
        return self.expansion_cost.level_cost.choose(most, alone_s, min(steps_s, default=math.inf))

    def _level_width(self, chosen: Sequence[tuple[Growth, Ints]]) -> int:
        """Count the nodes that a session has on every further level: as many as are expanded now, by powers of two, and 16 if they fit."""
        most = max(LEAST_LEVEL_WIDTH, *(len(slots) for _, slots in chosen))
        return max(1, min(1 << (most - 1).bit_length(), self._limits.expand_width // len(chosen)))

    def _pending(self, frontier: Sequence[FrontierPart]) -> int:
        return sum(self.proposer.pending(part.session) for part in frontier)

    def _expanded(self, part: FrontierPart, expansion: ExpansionOutcome) -> None:
        """Take in the outcome of an expansion for one session. An error ends that session, and no other."""
        growth = self.growth_of(part.session)
        match expansion:
            case SpecsplitError():
                self._end(part.session, expansion)
            case None:
                growth.postpone()
                growth.stalled = self.proposer.stalled(part.session)
            case WholeTree():
                growth.add_tree(expansion)
                self._count(part.session, len(expansion.tokens))
            case Children():
                below = growth.add_children(expansion)
                if part.scoring is not None:
                    self.proposer.assign_levels(part.session, below)
                expanded = len(part.slots) + sum(int(np.count_nonzero(slots >= 0)) for slots in below)
                self.expansion_cost.useful_levels = max(self.expansion_cost.useful_levels, len(below))
                self._count(part.session, expanded)

    def _count(self, session: SessionKey, expanded: int) -> None:
        self.counts.expanded_nodes += expanded
        self.rounds.expanded(session, expanded)

    def outgoing(self) -> Outgoing:
        """Take the answers that are to be sent now, by stream."""
        out: Outgoing = {}
        for session, event in self._take_answers():
            out.setdefault(session[0], []).append((session[1], event))
        return out

    def _take_answers(self) -> Iterator[tuple[SessionKey, Answer]]:
        yield from self._refusals
        self._refusals = []
        for session, position in self.proposer.take_read():
            yield session, FeaturesRead(position)
        now = self._clock.now()
        for session, state in self._sessions.items():
            for grow in state.growth.flush(now):
                self.counts.pushed_nodes += len(grow.ids)
                self.rounds.sent(session, grow)
                if grow.ids:
                    state.growth.cost_benefit.acknowledgements.record_sent(grow.ids[-1], now)
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
            case Plan():
                self._known(session, "plan").growth.set_plan(event)
            case Close():
                self._free(session)
            case _:
                raise event

    def _open(self, session: SessionKey, event: Open) -> None:
        if session in self._sessions:
            raise IllegalEvent(session[1], "growing", "open", "it is open already")
        if self.draining:
            raise Unavailable("the drafter is draining and takes no new sessions")
        if len(self._sessions) >= self._limits.max_sessions:
            raise Exhausted(f"the drafter has {len(self._sessions)} sessions open, its limit")
        info = self.proposer.info
        info.require_fit(event.vocabulary)
        info.features.require_fit(event.features)
        if len(event.tokens) > info.max_context:
            raise Incompatible(
                f"the session has {len(event.tokens)} tokens, and the drafter's context holds {info.max_context}"
            )
        original = Original(session[1], event.tokens[-1], len(event.tokens) - 1, event.max_nodes)
        calibration = self.calibrations.of(event.sampling.greedy)
        growth = Growth(
            original,
            event.plan,
            self._limits.expand_width,
            CostBenefit(
                self._limits.node_us / 1e6,
                event.step_us,
                self._contention(event.host),
                self.counts.usage,
            ),
            calibration,
            info.max_context,
            max_depth=self.proposer.max_depth,
            redraws=self.proposer.redraws,
            shares_root=self.proposer.shares_root,
            drafts_blocks=self.proposer.drafts_blocks,
            held=event.constraint is not None,
        )
        # Last: whatever fails after it would have to close it again.
        self.proposer.open(session, original.tree, event)
        growth.stalled = self.proposer.stalled(session)
        self._sessions[session] = _Session(growth, event.vocabulary.size, event.features)
        self.rounds.opened(session, event.traceparent)

    def _contention(self, verifier: Host) -> float:
        """Compute what an expansion takes from a verifier; 0 for kinds that redraw.

        Real heads took less from their verifiers than their threads say, and were slower with the price than without (docs/log.md).
        """
        return 0.0 if self.proposer.redraws else self._limits.host.contention(verifier)

    def _known(self, session: SessionKey, event: str) -> _Session:
        state = self._sessions.get(session)
        if state is None:
            raise IllegalEvent(session[1], "closed", event, "it was never opened on this stream")
        return state

    def _feed(self, session: SessionKey, event: Features) -> None:
        state = self._known(session, "features")
        self.proposer.feed(session, event, state.features)
        state.growth.stalled = self.proposer.stalled(session)

    def _commit(self, session: SessionKey, event: Commit) -> None:
        state = self._known(session, "commit")
        check_tokens("commit.token_ids", event.tokens, state.vocab_size)
        state.growth.cost_benefit.acknowledge(event.seen, self._clock.now())
        applied = state.growth.commit(event)
        self.counts.commits += 1
        self.counts.committed_nodes += len(applied.accepted)
        self.rounds.committed(session, event.number)
        self.proposer.commit(session, applied)
        state.growth.stalled = self.proposer.stalled(session)
        if state.growth.original.tree.root_position + 1 >= self.proposer.info.max_context:
            raise Incompatible(f"the session fills the drafter's context of {self.proposer.info.max_context} tokens")

    def _end(self, session: SessionKey, error: SpecsplitError) -> None:
        self._free(session, str(error))
        self._ended.add(session)
        self._refusals.append((session, error))

    def _free(self, session: SessionKey, error: str | None = None) -> None:
        state = self._sessions.pop(session, None)
        if state is not None:
            self.proposer.close(session)
            state.growth.original.close()
            self.rounds.closed(session, error)


def _levels_of(expansions: Sequence[ExpansionOutcome]) -> int:
    """Count the levels that were drawn, by the session that got the most."""
    return 1 + max((len(found.levels) for found in expansions if isinstance(found, Children)), default=0)

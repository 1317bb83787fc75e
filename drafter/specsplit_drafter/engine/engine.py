"""The thread that drafts: it handles the events of streams, expands, and delivers answers.

One cycle handles every event that has arrived (and waits for one if all sessions rest or are stalled), expands once, or a few times where
that takes next to no time and nothing has arrived, and delivers what was grown. So a commit is followed by an expansion of the new root
within one expansion's time, and a verifier gets one message per cycle at most, whatever the number of its sessions. The record of the cycle
is delivered with its answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from specsplit.clock import Clock
from specsplit.errors import RankLost, Unavailable
from specsplit.membership import StartWave
from specsplit.model_thread import SITE, ModelThread
from specsplit.ranks.rank import Rank
from specsplit.records import DrafterStatistics
from specsplit.values import DrafterInfo, Load
from specsplit_drafter.drafts.record import Cycle, Expansion
from specsplit_drafter.engine.events import (
    Drain,
    HandBack,
    Inbound,
    Received,
    Stop,
    StreamClosed,
    StreamOpened,
    TakeWeights,
)
from specsplit_drafter.engine.session_table import Outgoing, SessionEvent, SessionTable

if TYPE_CHECKING:  # it takes torch, which not every kind needs
    from specsplit_drafter.drafts.draft_weights import DraftWeights

_log = logging.getLogger(__name__)

_NEWEST_WEIGHT = 0.05
"""Weight of the newest expansion in the mean duration."""


class Outbox(Protocol):
    """Takes what the engine's thread has to deliver."""

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        """Take the answers to every stream, and the record of a cycle that is over. Must not block."""
        ...


class ExpansionTimes:
    """The number of expansions and their mean duration."""

    def __init__(self) -> None:
        self.count = 0
        self.mean_ms = 0.0
        """Exponentially weighted."""

    def add(self, milliseconds: float) -> None:
        """Count one more."""
        self.count += 1
        weight = _NEWEST_WEIGHT if self.count > 1 else 1.0
        self.mean_ms += weight * (milliseconds - self.mean_ms)


class Engine:
    """Owns the session table. Every public method may be called from any thread; none of them waits but `stop`."""

    def __init__(
        self,
        table: SessionTable,
        clock: Clock,
        outbox: Outbox,
        on_failure: Callable[[], None],
        thread: ModelThread | None = None,
    ) -> None:
        """`on_failure` is called, on the engine's thread, if that thread ends by an error of its own.

        `thread`: on which the model was loaded; it ends with the engine. None: one of its own.
        """
        self._table = table
        self._group = table.proposer.group
        self._clock = clock
        self._outbox = outbox
        self._on_failure = on_failure
        self._inbox: SimpleQueue[Inbound] = SimpleQueue()
        self._streams: set[int] = set()
        self._numbers = count(1)
        self._when_idle: Callable[[], None] | None = None
        self._stopping = False
        self._expansion_times = ExpansionTimes()
        self._thread = thread or ModelThread("drafter-engine")

    @property
    def rank(self) -> Rank | None:
        """Its rank in its group; None: it is alone."""
        return None if self._group is None else self._group.rank

    @property
    def info(self) -> DrafterInfo:
        """The info that verifiers get."""
        return self._table.proposer.info

    @property
    def weights_version(self) -> int:
        """Which weights of its model it has, counted from 1; 0: it has none."""
        return 1 + self._table.counts.updates if self.info.kind.needs_model else 0

    @property
    def weights(self) -> DraftWeights | None:
        """The weights of the model; None: there is none."""
        return self._table.proposer.weights

    def start(self) -> None:
        """Have the thread take events in from now on."""
        self._thread.start(self._run)

    def stop(self) -> None:
        """End the thread once all events that have arrived are handled, and wait for that. A second call does nothing."""
        self._inbox.put(Stop())
        self._thread.idle()
        self._thread.close()

    def open_stream(self) -> int:
        """Open the stream of a verifier that has come -> its number."""
        stream = next(self._numbers)
        self._inbox.put(StreamOpened(stream))
        return stream

    def receive(self, stream: int, events: Iterable[tuple[int, SessionEvent]]) -> None:
        """Post events of a stream, in order."""
        self._inbox.put(Received(stream, list(events)))

    def close_stream(self, stream: int) -> None:
        """Forget a verifier that is gone, and its sessions."""
        self._inbox.put(StreamClosed(stream))

    def drain(self, when_idle: Callable[[], None]) -> None:
        """Take no new sessions. `when_idle` is called once, on the engine's thread, when no session is left."""
        self._inbox.put(Drain(when_idle))

    def begin_wave(self, number: int) -> None:
        """Have this rank begin a wave of its group."""
        self._inbox.put(StartWave(number))

    def hand_back(self) -> None:
        """End every session, so that its verifier may find another drafter."""
        self._inbox.put(HandBack())

    def take_weights(self, copy: Callable[[], None]) -> Future[int]:
        """Call `copy`, which copies other weights into the model, between two expansions -> a future of their version."""
        answered: Future[int] = Future()
        self._inbox.put(TakeWeights(copy, answered))
        return answered

    def statistics(self) -> DrafterStatistics:
        """Count what the drafter has done and holds, for its metrics."""
        counts, pages = self._table.counts, self._table.proposer.pages
        return DrafterStatistics(
            sessions=self._table.num_sessions,
            streams=len(self._streams),
            expansions=self._expansion_times.count,
            expanded_nodes=counts.expanded_nodes,
            pushed_nodes=counts.pushed_nodes,
            commits=counts.commits,
            committed_nodes=counts.committed_nodes,
            used_pages=pages.used,
            total_pages=pages.total,
            drawn_expansions=counts.usage.drawn,
            used_expansions=counts.usage.used,
            expansion_ms=self._expansion_times.mean_ms,
            graphs=self._table.proposer.graphs,
        )

    def load(self) -> Load:
        """Measure how busy the drafter is, for the coordinator."""
        pages = self._table.proposer.pages
        return Load(
            sessions=self._table.num_sessions,
            free_pages=pages.total - pages.used,
            total_pages=pages.total,
            steps=self._expansion_times.count,
            step_ms=self._expansion_times.mean_ms,
        )

    def _run(self) -> None:
        try:
            rest_s = None
            while not self._stopping:
                self._take(rest_s)
                rest_s = self._cycle()
                self._notify_if_idle()
            if self._group is not None:
                self._group.rank.end()
        except RankLost as error:
            _log.error("sessions are handed back, and this process ends: %s", error)
            self._end_rounds(str(error))
            self._on_failure()
        except BaseException as error:
            _log.exception("the drafter's engine failed")
            self._end_rounds("the drafter's engine failed")
            self._on_failure()
            if self._group is not None:
                self._group.rank.fail(f"{type(error).__name__}: {error}")
            raise
        else:
            self._end_rounds("the drafter has stopped")

    def _take(self, rest_s: float | None) -> None:
        """Handle everything that has arrived. Wait up to `rest_s` for a first event; None: until it comes, and prepare meanwhile."""
        while rest_s is None and self._inbox.empty() and self._table.num_sessions == 0:
            with SITE.stepping:
                if not self._table.proposer.prepare():
                    break
        try:
            self._handle(self._inbox.get(block=rest_s != 0.0, timeout=rest_s))
            while True:
                self._handle(self._inbox.get_nowait())
        except Empty:
            return

    def _cycle(self) -> float | None:
        """Expand, if there is anything to expand -> seconds to rest then; None: until an event comes."""
        table = self._table
        # A commit may have made nodes of candidates: they leave before the next expansion.
        self._deliver(table.outgoing())
        if self._group is not None and self._group.rank.parked:
            self._group.rank.rests(unfinished=table.num_sessions > 0)
            return None
        more = table.expansions_per_message
        while more:
            if (times := self._expand()) is None:
                rest_s = None if self._group is None else self._group.run_idle(table.num_sessions)
                self._deliver(table.outgoing(), self._cycle_of(None))
                return rest_s
            more = more - 1 if self._inbox.empty() else 0
            outgoing = {} if more else table.outgoing()
            expansion = Expansion(*times, table.expansion_cost.frontier, table.rounds.take_shares())
            self._deliver(outgoing, self._cycle_of(expansion))
        return 0.0

    def _expand(self) -> tuple[float, float] | None:
        """Expand once -> when that began and ended; None if every session rests."""
        began, graphs = self._clock.now(), self._table.proposer.graphs
        self._table.rounds.stamp(began)
        with SITE.stepping:
            if self._table.expand() == 0:
                return None
        ended = self._clock.now()
        self._expansion_times.add((ended - began) * 1e3)
        self._table.expansion_cost.observe_run(ended - began, graphs, self._table.proposer.graphs)
        return began, ended

    def _cycle_of(self, expansion: Expansion | None) -> Cycle | None:
        rounds = self._table.rounds.take_ended()
        turns = () if self._group is None else self._group.take_turns()
        return Cycle(expansion, rounds, turns) if expansion or rounds or turns else None

    def _deliver(self, outgoing: Outgoing, cycle: Cycle | None = None) -> None:
        if outgoing or cycle:
            self._outbox.deliver(outgoing, cycle)

    def _end_rounds(self, why: str) -> None:
        rounds = self._table.rounds
        rounds.close_all(why)
        rounds.stamp(self._clock.now())
        self._deliver({}, self._cycle_of(None))

    def _handle(self, event: Inbound) -> None:
        match event:
            case StreamOpened(stream):
                self._streams.add(stream)
            case Received(stream, events):
                self._receive(stream, events)
            case StreamClosed(stream):
                self._streams.discard(stream)
                self._table.close_stream(stream)
            case Drain(when_idle):
                self._table.draining = True
                self._when_idle = when_idle
            case StartWave(number):
                if self._group is not None:
                    self._group.rank.start(number)
            case HandBack():
                self._table.refuse_all(Unavailable("the drafter is going away"))
            case TakeWeights():
                self._take_weights(event)
            case Stop():
                self._stopping = True

    def _receive(self, stream: int, events: Sequence[tuple[int, SessionEvent]]) -> None:
        with SITE.stepping:
            for session, each in events:
                self._table.handle((stream, session), each)

    def _take_weights(self, event: TakeWeights) -> None:
        """Raises whatever leaves the model between two revisions: nobody may draft with it then."""
        if not event.answered.set_running_or_notify_cancel():
            return
        try:
            event.copy()
        except BaseException as error:
            event.answered.set_exception(Unavailable(f"this drafter ends, since its weights are broken: {error}"))
            raise
        self._table.forget_calibrations()
        self._table.counts.updates += 1
        event.answered.set_result(self.weights_version)

    def _notify_if_idle(self) -> None:
        if self._when_idle is not None and self._table.num_sessions == 0:
            self._when_idle()
            self._when_idle = None

"""Expansions and sessions, as a drafter counts them."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.observe import metric_table as table
from specsplit.observe.metric import Service
from specsplit.observe.metrics.base import Metrics
from specsplit.observe.metrics.turns import Turns
from specsplit.records import DrafterStatistics, TurnCosts
from specsplit.values import DrafterKind


class DrafterMetrics(Metrics):
    """Counts expansions and sessions of one drafter of one kind."""

    def __init__(self, kind: DrafterKind, *, on: bool) -> None:
        super().__init__(Service.DRAFTER, on=on, fixed={table.KIND.name: (kind.value,)})
        self._kind = kind.value
        self._draft_time = self.instruments.histogram(table.DRAFT_TIME, self._kind)
        self._turns = Turns(self.instruments)
        self._refused = {code: self.instruments.counter(table.REFUSALS, code) for code in table.CODE.values}

    def expansion(self, seconds: float) -> None:
        """Count an expansion that is over."""
        if self.on:
            self._draft_time.observe(seconds)

    def turn(self, turn: TurnCosts, *, idle: bool) -> None:
        """Count a turn of its rank group."""
        if self.on:
            self._turns.count(turn, idle=idle)

    def refused(self, code: str) -> None:
        """Count a session that was ended on this side, by the name of a gRPC status."""
        self._refused.get(code.lower(), self._refused["unknown"]).add()

    def watch(self, read: Callable[[], DrafterStatistics]) -> None:
        """Have `read` called on the event loop, before every scrape, to look up what the engine has done and holds."""
        made, kind = self.instruments, self._kind
        sessions, streams = made.gauge(table.OPEN_SESSIONS, kind), made.gauge(table.OPEN_STREAMS, kind)
        pages, used = made.gauge(table.KV_PAGES), made.gauge(table.KV_PAGES_USED)
        expansions, expanded = made.counter(table.EXPANSIONS, kind), made.counter(table.EXPANDED_NODES, kind)
        drawn, used_ones = made.counter(table.DRAWN_EXPANSIONS, kind), made.counter(table.USED_EXPANSIONS, kind)
        pushed = made.counter(table.PUSHED_NODES, kind)
        commits, committed = made.counter(table.COMMITS_APPLIED, kind), made.counter(table.COMMITTED_NODES, kind)

        def look() -> None:
            totals = read()
            sessions.set(totals.sessions)
            streams.set(totals.streams)
            expansions.stand_at(totals.expansions)
            drawn.stand_at(totals.drawn_expansions)
            used_ones.stand_at(totals.used_expansions)
            expanded.stand_at(totals.expanded_nodes)
            pushed.stand_at(totals.pushed_nodes)
            commits.stand_at(totals.commits)
            committed.stand_at(totals.committed_nodes)
            pages.set(totals.total_pages)
            used.set(totals.used_pages)

        self._watchers.append(look)
        self.watch_graphs(lambda: read().graphs)

"""The metrics of a drafter, and the spans of traced sessions, which are made of records. On the event loop."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.errors import SpecsplitError
from specsplit.observe import TraceContext, Tracing
from specsplit.observe.metrics import DrafterMetrics
from specsplit.records import DrafterStatistics
from specsplit.rpc import code_of
from specsplit.settings import DrafterSettings
from specsplit_drafter.drafts.proposer import SessionKey
from specsplit_drafter.drafts.record import CommitRound, Cycle, Expansion, ExpansionShare
from specsplit_drafter.engine.rounds import Rounds


class Telemetry:
    """Makes metrics and spans of the engine's records."""

    def __init__(self, settings: DrafterSettings, tracing: Tracing) -> None:
        self._kind = settings.kind.value
        self._tracing = tracing
        self.metrics = DrafterMetrics(settings.kind, on=bool(settings.metrics_listen))
        self._contexts: dict[SessionKey, TraceContext] = {}
        """Contexts of rounds whose spans are yet to be made and have children."""

    def watch(self, read: Callable[[], DrafterStatistics]) -> None:
        """Read the engine's totals with `read` before every scrape."""
        self.metrics.watch(read)

    def rounds(self) -> Rounds:
        """Make the Rounds of the session table. They record nothing if there is nowhere to send spans."""
        return Rounds(self._tracing.follows if self._tracing.sink else None)

    def refused(self, error: SpecsplitError) -> None:
        """Count a session that this side has ended."""
        self.metrics.refused(code_of(error).name)

    def record(self, cycle: Cycle) -> None:
        """Make metrics and spans of a cycle of the engine that is over."""
        for round_ in cycle.rounds:
            self._round(round_)
        for each in cycle.turns:
            self.metrics.turn(each.costs, idle=each.idle)
        if cycle.expansion is not None:
            self.metrics.expansion(cycle.expansion.ended - cycle.expansion.began)
            if cycle.expansion.shares:
                self._expansion(cycle.expansion)

    def _round(self, round_: CommitRound) -> None:
        self._tracing.span(
            "spec_draft",
            round_.began,
            round_.ended,
            parent=round_.parent,
            context=self._contexts.pop(round_.session, None),
            attributes={
                "kind": self._kind,
                "round": round_.commits,
                "expanded": round_.expanded,
                "grown": round_.grown,
                "rested": round_.rested,
            },
            error=round_.error,
        )

    def _expansion(self, expansion: Expansion) -> None:
        attributes = {"kind": self._kind, "sessions": expansion.num_sessions, "nodes": expansion.num_nodes}
        batch = self._tracing.batch("expansion", expansion.began, expansion.ended, attributes=attributes)
        links = [batch] if batch else []
        for share in expansion.shares:
            for name, numbers in _parts(share):
                self._tracing.span(
                    name,
                    expansion.began,
                    expansion.ended,
                    parent=self._context(share),
                    attributes=numbers,
                    links=links,
                )

    def _context(self, share: ExpansionShare) -> TraceContext:
        """Look up the context of the round which a share belongs to."""
        if share.session not in self._contexts:
            self._contexts[share.session] = self._tracing.below(share.parent)
        return self._contexts[share.session]


def _parts(share: ExpansionShare) -> list[tuple[str, dict[str, int]]]:
    """List the spans that a share is made into, with their attributes."""
    parts: list[tuple[str, dict[str, int]]] = []
    if share.tokens:
        parts.append(("spec_draft_extend", {"tokens": share.tokens}))
    if share.nodes:
        parts.append(("spec_grow", {"nodes": share.nodes, "grown": share.grown}))
    return parts

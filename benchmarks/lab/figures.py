"""What a run comes to in numbers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.scenario import Policy, Scenario
from benchmarks.lab.source import Source
from benchmarks.report import Row
from specsplit_drafter.drafts.calibration import Calibrations

COLUMNS = {
    "name": "scenario", "drafter": "drafter", "mode": "mode", "policy": "planner", "temperature": "T", "delay_ms": "delay, ms",
    "sessions": "sessions", "rate": "committed tokens/s", "hits": "hits", "accept_length": "accept_length", "tokens": "tokens a step",
    "pushed": "nodes pushed a step", "expansions": "expansions a step", "used": "used a step", "wasted": "wasted a step",
    "idle": "drafter idle", "ttft_ms": "first token, ms",
}  # fmt: skip


Earlier = dict[Scenario, list[Calibrations]]
"""What drafters knew at the end of a run, by scenario."""


def measured(scenario: Scenario, source: Source, earlier: Earlier | None = None) -> Row:
    """Run a scenario; a warm one twice, so that drafters know what the first run has shown.

    That first run is the same for all planners: its outcome is kept in, and taken from, `earlier`.
    """
    laboratory = Laboratory(scenario, source, _known(scenario, source, earlier) if scenario.warm else ())
    laboratory.run()
    return figures(scenario, laboratory)


def _known(scenario: Scenario, source: Source, earlier: Earlier | None) -> list[Calibrations]:
    first, kept = replace(scenario, policy=Policy.STATIC), {} if earlier is None else earlier
    if first not in kept:
        laboratory = Laboratory(first, source)
        laboratory.run()
        kept[first] = [drafter.table.calibrations for drafter in laboratory.drafters]
    return deepcopy(kept[first])


def figures(scenario: Scenario, laboratory: Laboratory) -> Row:
    """A row of COLUMNS, of a run that is over. What a step has is of one session in one step."""
    ledger, drafters = laboratory.ledger, laboratory.drafters
    steps = [session for step in ledger.stepped for session in step.sessions]
    count = len(steps)
    usages = [drafter.table.counts.usage for drafter in drafters]
    hits, misses = (sum(session.hit is hit for session in steps) for hit in (True, False))
    spent = ledger.busy_s * max(1, len(drafters))
    return {
        "name": scenario.name,
        "drafter": scenario.drafted_by,
        "mode": scenario.mode,
        "policy": scenario.policy.value,
        "temperature": scenario.temperature,
        "delay_ms": scenario.link.delay_ms,
        "sessions": round(count / max(1, len(ledger.stepped)), 1),
        "rate": sum(len(entry.tokens) for entry in ledger.entries) / ledger.busy_s,
        "hits": hits / max(1, hits + misses),
        "accept_length": 1 + sum(session.accepted for session in steps) / count,
        "tokens": 1 + sum(session.drafted for session in steps) / count,
        "pushed": sum(drafter.table.counts.pushed_nodes for drafter in drafters) / count,
        "expansions": sum(drafter.expansions for drafter in drafters) / len(ledger.stepped),
        "used": sum(each.used for each in usages) / len(ledger.stepped),
        "wasted": sum(each.drawn - each.used for each in usages) / len(ledger.stepped),
        "idle": 1 - sum(drafter.busy_s for drafter in drafters) / spent if drafters else 1.0,
        "ttft_ms": float(np.median([entry.first_at - entry.came for entry in ledger.entries])) * 1e3,
    }

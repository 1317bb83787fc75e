"""What a run comes to in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.scenario import Policy, Scenario
from benchmarks.lab.source import Source
from benchmarks.report import Row
from specsplit_drafter.calibration import Calibrations

COLUMNS = {
    "name": "scenario", "drafter": "drafter", "mode": "mode", "policy": "planner", "temperature": "T", "delay_ms": "delay, ms",
    "sessions": "sessions", "rate": "committed tokens/s", "hits": "hits", "accept_length": "accept_length", "tokens": "tokens a step",
    "pushed": "nodes pushed a step", "expansions": "expansions a step", "idle": "drafter idle", "ttft_ms": "first token, ms",
}  # fmt: skip


def measured(scenario: Scenario, source: Source) -> Row:
    """Run a scenario; a warm one twice, so that drafters know what the first run has shown."""
    known: Sequence[Calibrations] = ()
    if scenario.warm:
        earlier = Laboratory(replace(scenario, policy=Policy.STATIC), source)
        earlier.run()
        known = [drafter.table.calibrations for drafter in earlier.drafters]
    laboratory = Laboratory(scenario, source, known)
    laboratory.run()
    return figures(scenario, laboratory)


def figures(scenario: Scenario, laboratory: Laboratory) -> Row:
    """A row of COLUMNS, of a run that is over. What a step has is of one session in one step."""
    ledger, drafters = laboratory.ledger, laboratory.drafters
    steps = [session for step in ledger.stepped for session in step.sessions]
    count = len(steps)
    hits, misses = (sum(session.hit is hit for session in steps) for hit in (True, False))
    spent = ledger.busy_s * max(1, len(drafters))
    return {
        "name": scenario.name,
        "drafter": "; ".join(map(str, scenario.drafters)) or "none",
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
        "idle": 1 - sum(drafter.busy_s for drafter in drafters) / spent if drafters else 1.0,
        "ttft_ms": float(np.median([entry.first_at - entry.came for entry in ledger.entries])) * 1e3,
    }

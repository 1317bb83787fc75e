"""The short form of the fire: half a minute of each part, on a seed; the logs of its processes stay in build/fire."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.command import SHORT_MINUTES, burn
from benchmarks.machine import describe

MODELS = Path(__file__).parents[2] / "models" / "pocket"
PARTS = ("chaos", "fuzz", "soak")
SEED = 11059
"""Of the first five faults that it draws three kill a process, one of each service; one stops a drafter, one drains the coordinator."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_fire_no_text_is_different_and_nothing_hangs_dies_or_is_left_over() -> None:
    context = Context(MODELS, True, describe([f"pytest {__name__}"]), Console(width=160))
    found = burn(context, PARTS, SHORT_MINUTES, SEED)
    assert [fault for part in found for fault in part.faults] == []
    counts = {(row["part"], row["what"]): row["count"] for part in found for row in part.rows}
    assert counts["chaos", "of these drafter killed"] == 1, "the first that is drawn, so it strikes on any machine"
    assert all(counts[part, what] for part, what in (("fuzz", "fuzzed messages"), ("soak", "requests")))

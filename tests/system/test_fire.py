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
SEED = 177
"""Among the first faults that it draws each service has one killed and one drained."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_fire_no_text_is_different_and_nothing_hangs_dies_or_is_left_over() -> None:
    context = Context(MODELS, True, describe([f"pytest {__name__}"]), Console(width=160))
    found = burn(context, PARTS, SHORT_MINUTES, SEED)
    assert [fault for part in found for fault in part.faults] == []

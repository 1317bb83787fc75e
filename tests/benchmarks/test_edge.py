"""The benchmark `edge`: what a token tells of its time, and a small run of real processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import context, edge
from benchmarks.edge import pace

MODELS = Path(__file__).parents[2] / "models" / "pocket"


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=40))
def test_a_token_tells_how_late_it_is_for_as_long_as_its_number_does_not_come_round(now: float, ago: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        token = pace.step() % pace.TOLD
        due = pace.step() * pace.INTERVAL_S
        patch.setattr(time, "monotonic", lambda: now + ago)
        assert pace.late_s(token) == pytest.approx(now + ago - due, abs=pace.INTERVAL_S / 1000)


@pytest.mark.slow
def test_a_small_run_streams_through_both_and_writes_what_a_token_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "QUICK_RESULTS", tmp_path)
    edge.run(context.Context(MODELS, quick=True, machine={}, console=Console(quiet=True)))
    (row,) = json.loads((tmp_path / "edge.json").read_text())["rows"]
    assert row["streams"] == 2 and row["tokens_s"] > 0 and row["empty_tokens_s"] > 0
    assert row["a_message"] >= 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png"}

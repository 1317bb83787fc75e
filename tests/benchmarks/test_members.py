"""A small run of the benchmark `members`: real processes, a coordinator and its crowd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import context, members

MODELS = Path(__file__).parents[2] / "models" / "pocket"


@pytest.mark.slow
def test_a_small_run_lets_members_join_asks_and_writes_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "QUICK_RESULTS", tmp_path)
    members.run(context.Context(MODELS, quick=True, machine={}, console=Console(quiet=True)))
    (row,) = json.loads((tmp_path / "members.json").read_text())["rows"]
    assert row["members"] == "2 + 2" and row["request_ms"]["repeats"] == 5
    assert row["join_cpu_s"] >= 0 and row["idle_cores"] >= 0 and row["request_cpu_ms"] >= 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png"}

"""The benchmark `placement`: in virtual time, so that it comes to the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import context, placement
from benchmarks.placement import cost, evenness
from benchmarks.placement.evenness import AIM, loads
from benchmarks.placement.sharing import Scale, Sharing, all_knowing

SCALE = Scale(verifiers=60, drafters=60, sessions=6_000)


def worst(shares: list[float], *, homes: bool = True) -> float:
    return float(str(loads(Sharing(SCALE, shares, homes=homes).run())["worst"]))


def test_eight_coordinators_load_their_worst_verifier_a_tenth_more_than_one_that_knows_all_at_most() -> None:
    knowing = float(str(loads(all_knowing(SCALE))["worst"]))
    assert worst([1.0]) <= 1.03 * knowing
    eight = worst([1.0] * 8)
    assert eight <= AIM * knowing
    assert worst([7.0, *[1.0] * 7]) <= (AIM + 0.02) * knowing, "one of them has half of the requests"
    assert worst([1.0] * 8, homes=False) > eight + 0.03, "it is the homes that do it"


def test_a_small_run_writes_loads_and_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "QUICK_RESULTS", tmp_path)
    monkeypatch.setattr(evenness, "QUICK", Scale(10, 20, 300))
    monkeypatch.setattr(cost, "SIZES", (4, 40))
    placement.run(context.Context(tmp_path, quick=True, machine={}, console=Console(quiet=True)))
    told = json.loads((tmp_path / "placement.json").read_text())
    assert [row["who"] for row in told["rows"][:5]] == ["one that knows all", "1", "2", "4", "8"]
    costs = json.loads((tmp_path / "placement_cost.json").read_text())["rows"]
    assert [row["members"] for row in costs] == [4, 40] and all(row["us"] > 0 for row in costs)

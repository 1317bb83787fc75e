"""The benchmark of targets by the kind of their layers: what is kept of a text, and a small run of all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import targets
from benchmarks.context import Context

KINDS = ("all tokens", "a window")


def test_of_a_window_no_more_is_kept_of_a_longer_text() -> None:
    kept = {kind: [targets.kept_tokens(targets.load(kind), context) for context in (1024, 4096)] for kind in KINDS}
    assert kept == {"all tokens": [1024, 4096], "a window": [targets.WINDOW] * 2}


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_kind_context_and_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    targets.run(Context(Path(), quick=True, machine={}, console=Console(quiet=True)))
    rows = json.loads((tmp_path / "build/results/targets.json").read_text())["rows"]
    assert len(rows) == len(targets.KINDS) * len(targets.CONTEXTS) * len(targets.NODES)
    states = {row["kind"]: row["states"] for row in rows}
    assert states["all tokens"] == 0 < states["linear attention, 3 of 4"]
    assert {row["kv_token"] for row in rows if row["kind"] == "state spaces"} == {0}

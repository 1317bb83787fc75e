"""Rows of `step_overhead` whose sessions another process reads: what is counted, and a small run of real processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.context import Context
from benchmarks.step_overhead import COLUMNS
from benchmarks.streamed import bench
from benchmarks.streamed.bench import QUICK_BATCH, edge_s

MODELS = Path(__file__).parents[2] / "models" / "pocket"


def _spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(("name", "counts"), [("engine", False), ("noise_0", False), ("poller", True)])
def test_the_edge_is_the_processor_time_of_all_threads_but_the_engines(name: str, counts: bool) -> None:
    looked, end, before = threading.Event(), threading.Event(), edge_s()
    thread = threading.Thread(target=lambda: (_spin(0.2), looked.set(), end.wait()), name=name)
    thread.start()
    looked.wait()
    taken = edge_s() - before
    end.set()
    thread.join()
    assert (taken > 0.15) is counts


@pytest.mark.slow
def test_a_small_run_has_a_row_for_each_drafter_and_temperature() -> None:
    rows = bench.rows(Context(MODELS, quick=True, machine={}, console=Console(quiet=True)))
    assert [(row["drafter"], row["temperature"]) for row in rows] == [
        ("none, streams", 0.0),
        ("none, streams", 1.0),
        ("ngram, streams", 0.0),
        ("ngram, streams", 1.0),
    ]
    for row in rows:
        assert row.keys() == COLUMNS.keys()
        assert row["batch"] == QUICK_BATCH
        assert isinstance(row["steps"], int) and row["steps"] > 0
        assert isinstance(row["edge_us"], float) and row["edge_us"] > 0

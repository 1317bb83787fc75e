"""The benchmark `edge`: what a token tells of its time, and a small run of real processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import context, edge
from benchmarks.edge import pace
from benchmarks.edge.folder import number_of, numbers_in, text_of, token_of, tokens_of, write_folder
from benchmarks.edge.loads import BY_SEVERAL, HALF, HALF_BY_SEVERAL, INTERVAL_S, SATURATED, SATURATED_S, Load
from benchmarks.edge.parties import COORDINATOR, EMPTY, GATEWAY, VERIFIER
from benchmarks.edge.processor import processor_s
from benchmarks.edge.table import COLUMNS, rows_of, verdict
from specsplit.text.tokenizer import Tokenizer

MODELS = Path(__file__).parents[2] / "models" / "pocket"


EVERY = st.integers(1, 4095).map(lambda units: units * 1e-4)


@given(st.floats(min_value=0, max_value=1e6), st.floats(min_value=0, max_value=2000), EVERY)
def test_a_token_tells_how_late_it_is_for_as_long_as_its_number_does_not_come_round(
    now: float, intervals: float, every_s: float
) -> None:
    ago = intervals * every_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        token = number_of(token_of(pace.step(every_s)))
        due = pace.step(every_s) * every_s
        patch.setattr(time, "monotonic", lambda: now + ago)
        assert pace.late_s(token, every_s) == pytest.approx(now + ago - due, abs=1e-6)


@given(EVERY, st.integers(1, 63))
def test_a_prompt_says_the_interval_and_the_verifiers_as_text_and_as_tokens(every_s: float, verifiers: int) -> None:
    prompt = pace.prompt_of(every_s, verifiers)
    assert pace.asked(text_of(tokens_of(prompt))) == pace.asked(prompt) == (pytest.approx(every_s), verifiers)


@given(st.integers(1, 2000), EVERY)
def test_verifiers_have_64_sessions_at_most_and_each_its_turn_in_an_interval(streams: int, every_s: float) -> None:
    load = Load(streams, every_s).by_several(BY_SEVERAL)
    assert (load.verifiers - 1) * 64 < streams <= load.verifiers * 64
    assert load.step_s * load.verifiers == pytest.approx(every_s)
    assert load.offered == Load(streams, every_s).offered


def test_the_tokenizer_writes_numbers_of_steps_that_are_read_again_and_reads_prompts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_folder(tmp_path))
    numbers = [0, 7, 2047, 12]
    assert numbers_in(tokenizer.decode([token_of(number) for number in numbers]) + "00") == numbers
    assert list(tokenizer.encode("0<aZ")) == tokens_of("0<aZ")


def _turns(*figures: tuple[float, float, float]) -> list[dict[str, float]]:
    """Turns of (us of CPU, delay p50 in ms, p99 in ms)."""
    rest = {"tokens_s": 500.0, "tokens_a_message": 1.0, "verifier_us": 9.0, "offered": 500.0}
    return [{"cpu_us": cpu, "late_p50_ms": half, "late_p99_ms": most, **rest} for cpu, half, most in figures]


def test_ratios_and_what_is_added_are_those_of_turns() -> None:
    coordinator = _turns((90.0, 3.0, 9.0), (300.0, 5.0, 30.0), (80.0, 3.5, 8.0))
    by_party = {
        EMPTY: _turns((60.0, 2.0, 5.0), (300.0, 4.0, 25.0), (50.0, 2.0, 5.0)),
        COORDINATOR: coordinator,
        VERIFIER: _turns((20.0, 1.0, 4.0), (90.0, 2.0, 24.0), (20.0, 1.0, 4.0)),
    }
    half = {name: _turns((40.0, 6.0, 9.0), (40.0, 6.0, 9.0), (40.0, 6.0, 9.0)) for name in by_party}
    whole = Load(400, INTERVAL_S)
    loads = dict.fromkeys((whole, whole.by_several(BY_SEVERAL), Load(400, SATURATED_S, SATURATED)), by_party)
    loads |= {Load(400, 0.0, HALF): half, Load(400, 0.0, HALF_BY_SEVERAL): half}
    rows = {(row["streams"], row["party"]): row for row in rows_of(loads, "it is not installed")}
    own = rows["400", COORDINATOR]
    assert own["ratio"] == "1.50 (1.25..1.55)"
    assert (own["cpu_us"], own["core_s"]) == (90.0, 11_111)
    assert own["added"] == "2.5 / 8"
    assert rows["400, half of that", COORDINATOR]["added"] == "5 / 8"  # beyond those at 20 ms
    assert rows["400", f"{GATEWAY}: not measured, it is not installed"].keys() == COLUMNS.keys()
    assert "1.50. Saturated: at most 60 us a token, 15,000 tokens/s a core; 90, 11,111." in verdict([*rows.values()])


def test_the_processor_time_of_a_process_is_that_of_all_its_threads() -> None:
    before, own = processor_s(os.getpid()), time.process_time()
    while time.process_time() < own + 0.05:
        pass
    assert processor_s(os.getpid()) - before >= 0.05
    assert processor_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


@pytest.mark.slow
def test_a_small_run_streams_through_all_that_are_here_and_writes_what_a_token_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "QUICK_RESULTS", tmp_path)
    edge.run(context.Context(MODELS, quick=True, machine={}, console=Console(quiet=True)))
    rows = json.loads((tmp_path / "edge.json").read_text())["rows"]
    for load in (
        f"2{name}" for name in ("", f", {BY_SEVERAL}", ", saturated", ", half of that", f", {HALF_BY_SEVERAL}")
    ):
        here = {row["party"]: row for row in rows if row["streams"] == load}
        for party in (EMPTY, COORDINATOR, VERIFIER):
            assert here[party]["tokens_s"] > 0
            assert here[party]["a_message"] >= 1
        (gateway,) = (row for name, row in here.items() if name.startswith(GATEWAY))
        assert (gateway["tokens_s"] or 0) > 0 or "pip install" in gateway["party"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png"}

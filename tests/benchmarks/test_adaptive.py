"""The adaptive benchmark's own arithmetic, and a small run of all of it; no models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.adaptive import command
from benchmarks.adaptive.bench import Bench, Outcome, Size
from benchmarks.adaptive.contenders import HINDSIGHT, static
from benchmarks.adaptive.phases import Phase, PhasedSource
from benchmarks.adaptive.run import Run, StepTaken
from benchmarks.adaptive.switching import around, switching
from benchmarks.adaptive.table import curve
from benchmarks.context import Context
from benchmarks.lab.hindsight import hindsight
from benchmarks.lab.trace import Header, Level, Trace, row, write

LENGTH = 24


def trace(tmp_path: Path, name: str, level: Level, temperature: float) -> Trace:
    file = tmp_path / name
    header = Header("target", "draft", "standalone", by_depth=False, temperature=temperature)
    write(file, header, [row(request, 1 + at, [level]) for request in "ab" for at in range(LENGTH)])
    return Trace.read(file)


@pytest.fixture
def phases(tmp_path: Path) -> tuple[Phase, ...]:
    easy = Phase("easy", trace(tmp_path, "easy", Level(0, (0.9, 0.05)), 0.0))
    hard = Phase("hard", trace(tmp_path, "hard", Level(-1, (0.5, 0.4)), 1.0))
    return easy, hard, Phase("easy again", easy.trace)


def taken(phase: int, seconds: float, committed: int, plan: tuple[int, int] = (1, 2)) -> StepTaken:
    return StepTaken(phase, seconds, committed, sessions=2, drafted=4, plan=plan)


def run(*rates: float) -> Run:
    return Run([taken(phase, 2.0, int(2 * rate)) for phase, rate in enumerate(rates)])


def test_every_phase_has_its_own_texts_and_the_first_requests_are_cut_unequally(phases: tuple[Phase, ...]) -> None:
    source = PhasedSource(phases)
    scenario = Bench(source, Size(4, 4)).scenario
    requests = source.requests(scenario)
    assert [source.phase_of(number, scenario) for number in range(12)] == [0] * 4 + [1] * 4 + [2] * 4
    assert [request.sampling.temperature for request in requests] == [0.0] * 4 + [1.0] * 4 + [0.0] * 4
    assert [request.sampling.seed for request in requests] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
    assert [request.stopping.max_tokens for request in requests[:5]] == [6, 12, 18, 24, 24]


def test_a_run_is_told_phase_by_phase(phases: tuple[Phase, ...]) -> None:
    bench = Bench(PhasedSource(phases), Size(1, 4))
    drafting, alone = bench.run(static(3, 4)), bench.run(static(0, 1))
    assert {step.phase for step in drafting.steps} == {0, 1, 2}
    assert drafting.rate(0) > 1.3 * drafting.rate(1)
    assert [alone.per_session(phase) for phase in range(3)] == [(1.0, 1.0)] * 3
    assert drafting.per_session(1)[0] == 1.0
    assert drafting.switches == []
    assert Bench(PhasedSource(phases), Size(1, 4)).run(static(3, 4)) == drafting


def test_regret_is_against_the_phase_and_the_gap_is_of_the_whole_run() -> None:
    outcome = Outcome(
        1, {"low": run(5, 4), "high": run(10, 1), "both": run(9, 4), "oracle": run(10, 5)}, ["low", "high"]
    )
    assert (outcome.best(0), outcome.best(1), outcome.best()) == ("high", "low", "high")
    assert (outcome.regret("both", 0), outcome.regret("both", 1)) == (pytest.approx(0.1), 0.0)
    assert outcome.gain("both") == pytest.approx(6.5 / 5.5 - 1)
    assert outcome.closed("both", "oracle") == pytest.approx((6.5 - 5.5) / (7.5 - 5.5))
    assert outcome.closed("both", "low") is None


def test_what_stands_around_a_switch_is_five_steps_on_either_side() -> None:
    plans = [(1, 2)] * 7 + [(3, 4)] * 6
    switched = Run([taken(0, 1.0, number, plan) for number, plan in enumerate(plans)])
    before, after = around(switched)
    assert switched.switches == [7]
    assert [step.committed for step in before] == [2, 3, 4, 5, 6]
    assert [step.committed for step in after] == [7, 8, 9, 10, 11]
    assert switched.first(0, 3) == 1.0


def test_a_curve_has_its_points_in_the_middle_of_what_they_are_of() -> None:
    assert curve(run(1, 3)) == ([0.125, 0.625], [1.0, 3.0])


def test_an_operator_switches_between_two_plans_and_back(phases: tuple[Phase, ...]) -> None:
    bench = Bench(PhasedSource(phases), Size(2, 4))
    found = switching(bench, static(1, 2), static(3, 4), every_s=0.05)
    plans = {step.plan for step in found.both.steps}
    assert plans == {(1, 2), (3, 4)}
    assert len(found.both.switches) > 4
    low, high = sorted(run.rate() for run in found.kept)
    assert 0.95 * low < found.both.rate() < 1.05 * high


@pytest.mark.slow
def test_all_of_it_runs_and_says_what_was_best(
    phases: tuple[Phase, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = Context(Path(), quick=True, machine={}, console=Console(quiet=True))
    command.run(context, phases, [Size(1, 4), Size(2, 6)])
    written = json.loads((tmp_path / "build/results/adaptive.json").read_text())
    assert {row["callers"] for row in written["rows"]} == {1, 2}
    named = [row["best"] for row in written["rows"] if row["best"]]
    for part in ("easy", "hard", "easy again", "whole run"):
        assert sum(part in words.split(", ") for words in named) == 2
    assert any(note.startswith("Switching a plan costs nothing") for note in written["notes"])
    assert (tmp_path / "build/results/adaptive.png").stat().st_size


def test_the_load_of_the_table_is_easy_and_hard() -> None:
    rates = [
        sum(level[0].rank == 0 for request in trace.requests for level in request.values())
        / sum(len(request) for request in trace.requests)
        for trace in (Trace.read(command.EASY), Trace.read(command.HARD))
    ]
    assert rates[0] > 0.85
    assert rates[1] < 0.25


def test_in_hindsight_drafters_say_how_often_they_are_right(phases: tuple[Phase, ...]) -> None:
    easy, hard, _ = PhasedSource(phases).in_hindsight.phases
    first, second = easy.trace.requests[0][1][0].probabilities
    assert first > 0.95
    assert second < 0.05
    assert max(hard.trace.requests[0][1][0].probabilities) < 0.05
    assert [level.rank for level in easy.trace.requests[0][1]] == [
        level.rank for level in phases[0].trace.requests[0][1]
    ]


def test_true_probabilities_of_the_kept_traces_are_nearer_to_what_was_right() -> None:
    for trace in (Trace.read(command.EASY), Trace.read(command.HARD)):
        said, true = (_squared_error(each) for each in (trace, hindsight(trace)))
        assert true < 0.9 * said


def _squared_error(trace: Trace) -> float:
    levels = [level for request in trace.requests for own in request.values() for level in own]
    return sum((p - (rank == level.rank)) ** 2 for level in levels for rank, p in enumerate(level.probabilities))


def test_whoever_knows_how_often_it_is_right_commits_more(phases: tuple[Phase, ...]) -> None:
    bench = Bench(PhasedSource(phases), Size(1, 4))
    assert bench.run(HINDSIGHT).rate() > bench.run(static(0, 1)).rate()

"""What the fire draws, counts and judges; no processes but this one."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire import command, recovery, table
from benchmarks.fire.answer import Answer, Ends, ends, stops
from benchmarks.fire.asking import Asking
from benchmarks.fire.chaos import expected_kinds
from benchmarks.fire.ending import SIGNALS, Ending
from benchmarks.fire.faults import LOST_AFTER_S, Deed, Service, faults
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.leaks import BOUNDS, growths, slope
from benchmarks.fire.logs import Logs
from benchmarks.fire.mix import PICKS, Asked, Manner, requests
from benchmarks.fire.outcomes import STANDSTILL_S, Outcome, Stillness, Tally
from benchmarks.fire.recovery import Recoveries, first_token, next_tokens
from benchmarks.fire.samples import DESCRIPTORS, PAGES, RSS, SESSIONS, THREADS, Life, Samples, held_by, told_by
from benchmarks.fire.verdict import run_out
from benchmarks.known import Known
from benchmarks.ports import free_ports
from specsplit.cli.local import Child
from specsplit.client import make_request
from specsplit.requests import Delta, Done
from specsplit.text.stop import StopScanner
from specsplit.values import (
    FinishReason,
    PlanChanges,
    Sampling,
    SpeculationStatistics,
    TokenLogprob,
    Usage,
)

PLACES = (Service.COORDINATOR, Service.VERIFIER, Service.VERIFIER, Service.DRAFTER)
MUST_NOT_BE = "found that must not be"
READS = ("", "one", "one two", "one two three")
KNOWN = Known((1,), 0.0, 0, (5, 6, 7), ((5, 6, 7),), readings=(READS, READS))


def asked(manner: Manner = Manner.READ, n: int = 1) -> Asked:
    return Asked(0, 3, n, None, PlanChanges(), manner, 0.0, resumes=True, pause_s=0.0)


def test_a_seed_draws_the_same_again_and_another_one_something_else() -> None:
    def drawn(seed: int) -> list[object]:
        chance = random.Random(seed)
        streams = (faults(chance, PLACES), requests(chance, 4, 64))
        return [list(islice(each, 50)) for each in streams]

    assert drawn(3) == drawn(3) != drawn(4)


def test_every_kind_of_fault_comes_once_before_any_comes_again() -> None:
    some = list(islice(faults(random.Random(5), PLACES), 24))
    assert len({each.kind for each in some[:12]}) == len({each.kind for each in some[12:]}) == 12
    assert {
        each.place for each in islice(faults(random.Random(5), PLACES), 200) if each.service is Service.VERIFIER
    } == {0, 1}
    for each in islice(faults(random.Random(5), PLACES), 200):
        assert each.deed is not Deed.PAUSE or each.for_s < LOST_AFTER_S
        assert each.deed is not Deed.STOP or each.for_s > LOST_AFTER_S


def test_requests_are_of_every_manner_and_ask_for_no_more_than_is_known() -> None:
    some = list(islice(requests(random.Random(1), 4, 64), 300))
    assert {each.manner for each in some} == set(Manner) and {each.text for each in some} == set(range(4))
    assert max(each.new for each in some) == 64 and {each.n for each in some} == {1, 2}
    assert {each.logprobs for each in some} == {None, 0, 3} and {bool(each.stop) for each in some} == {True, False}
    assert 0 < sum(each.cut is not None for each in some) < 150


def test_the_mix_has_every_option_of_sampling() -> None:
    plain = Sampling()
    for field in fields(Sampling):
        assert any(getattr(pick, field.name) != getattr(plain, field.name) for pick in PICKS), field.name


def test_a_known_text_is_asked_for_with_the_sampling_that_it_has() -> None:
    for pick in PICKS:
        known = Known((1,), pick.temperature, pick.seed, (5,), picks=pick)
        assert known.sampling == pick == make_request((1,), **known.options).sampling


def test_a_text_ends_before_the_stop_string_that_is_cut_out_of_it() -> None:
    cut = replace(asked(n=2), cut=0.3, stop=("\n\u2603",))
    assert stops(KNOWN, cut) == ("\n\u2603", " two")
    assert ends(KNOWN, cut) == [Ends((5, 6), "one", " two")] * 2
    assert ends(KNOWN, replace(cut, cut=None)) == [Ends((5, 6, 7), READS[-1], None)] * 2


@given(
    st.lists(st.text("ab\ufffd ", min_size=1, max_size=3), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True)
)
def test_where_a_text_ends_is_where_the_product_ends_it(pieces: list[str], cut: float) -> None:
    readings = tuple("".join(pieces[:count]) for count in range(len(pieces) + 1))
    known = Known((1,), 0.0, 0, tuple(range(len(pieces))), readings=(readings,))
    wanted = replace(asked(), new=len(pieces), cut=cut)
    scanner, count, text = StopScanner(stops(known, wanted)), 0, ""
    while scanner.matched is None and count < len(pieces):
        text += scanner.feed(pieces[count])
        count += 1
    (end,) = ends(known, wanted)
    assert (end.tokens, end.stop) == (known.tokens[:count], scanner.matched)
    assert end.text == (text if scanner.matched else (text + scanner.flush()).rstrip("\ufffd"))


def done(stop: str | None) -> Done:
    reason = FinishReason.STOP if stop else FinishReason.LENGTH
    return Done("r", reason, stop, Usage(1, 2, 0), SpeculationStatistics(), 0, "v")


def answer(*deltas: Delta, stop: str | None = " two", logprobs: int | None = None) -> Answer:
    made = Answer(Ends((5, 6), "one", " two"), logprobs)
    for each in deltas:
        made.take(each)
    made.done.append(done(stop))
    return made


def test_an_answer_is_wrong_in_its_tokens_its_text_its_end_or_its_log_probabilities() -> None:
    assert not answer(Delta("one", (5, 6))).wrong
    assert "[5] in the place of" in answer(Delta("one", (5,))).wrong and not answer(Delta("one", (5,))).strays
    assert "[5, 7] in the place of" in answer(Delta("one", (5, 7))).strays
    assert "text 'one '" in answer(Delta("one ", (5, 6))).wrong
    assert "ends at [None]" in answer(Delta("one", (5, 6)), stop=None).wrong
    told = tuple(TokenLogprob(token, -1.0, (TokenLogprob(1, -0.5),)) for token in (5, 6))
    assert not answer(Delta("one", (5, 6), logprobs=told), logprobs=1).wrong
    for few in (told[:1], told[::-1], ()):
        assert "log-probabilities of" in answer(Delta("one", (5, 6), logprobs=few), logprobs=1).strays
    assert (
        answer(Delta("one", (5, 6), logprobs=told)).strays
        and answer(Delta("one", (5, 6), logprobs=told), logprobs=3).strays
    )


def test_the_rest_of_an_answer_is_the_end_of_its_text() -> None:
    resumed = answer(Delta("o", (5,)))
    for text, right in (("ne", True), ("one", True), ("n", False)):
        resumed.tokens[1:] = []
        resumed.again()
        resumed.take(Delta(text, (6,)))
        resumed.done.append(done(" two"))
        assert (not resumed.wrong) is right


@given(st.floats(-10, 10), st.floats(-100, 100), st.lists(st.integers(-100, 100), min_size=2, unique=True))
def test_the_slope_through_points_of_a_line_is_the_lines(a: float, b: float, xs: list[int]) -> None:
    assert slope([(x, a * x + b) for x in xs]) == pytest.approx(a, abs=1e-6)


def test_the_slope_of_noise_is_that_of_the_best_line() -> None:
    assert slope([(0, 0.0), (1, 2.0), (2, 1.0), (3, 3.0)]) == pytest.approx(0.8)
    assert slope([(1, 5.0), (1, 7.0)]) == 0.0


def life(grows: float, minutes: float = 30.0) -> Samples:
    """A process whose RSS goes up and down by 5 MiB, and grows by so many MiB a minute behind its first third."""
    name, each = Life("verifier-0", 7), Samples()
    points = [
        (at * 10.0, 300.0 + (at % 2) * 5 + max(0.0, at / 6 - minutes / 3) * grows) for at in range(round(minutes * 6))
    ]
    each.lives[name] = [(at, {RSS: rss}) for at, rss in points]
    return each


def test_what_grows_behind_the_warm_up_leaks_and_what_goes_up_and_down_does_not() -> None:
    (leaking,) = growths(life(2.0))
    assert leaking.per_minute == pytest.approx(2.0, rel=0.05) and leaking.leaks
    (steady,) = growths(life(0.1))
    assert not steady.leaks, "less than a MiB a minute"
    (little,) = growths(life(2.0, minutes=6.0))
    assert not little.leaks, "so few MiB may be a cache that fills"
    assert not list(growths(life(50.0, minutes=2.0))), "too short to be judged"


def test_what_is_held_for_callers_at_the_end_of_a_life_is_no_leak_and_what_is_never_given_back_is() -> None:
    taken = Samples()
    busy = [float(7 * at % 250) for at in range(100)] + [
        2000.0
    ] * 5  # at 104 a stopped verifier's sessions are still there
    for pid, kept in enumerate((0.0, 6.0)):
        taken.lives[Life("eagle3", pid)] = [
            (at * 3.0, {PAGES: (at % 4 > 0) * pages + at * kept}) for at, pages in enumerate(busy)
        ]
    assert [growth.leaks for growth in growths(taken)] == [False, True]


def test_samples_are_written_a_line_each(tmp_path: Path) -> None:
    life(1.0, minutes=1.0).write(tmp_path / "a" / "samples.jsonl")
    lines = (tmp_path / "a" / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 6 and json.loads(lines[1]) == {"process": "verifier-0", "pid": 7, "at_s": 10.0, RSS: 305.0}


def test_a_process_is_sampled_by_what_the_kernel_and_its_metrics_say() -> None:
    held = held_by(os.getpid())
    assert held[RSS] > 20 and held[DESCRIPTORS] > 2 and held[THREADS] >= 1
    metrics = "# TYPE specsplit_open_sessions gauge\n" + "".join(
        f'specsplit_open_sessions{{kind="{kind}"}} {count}\n' for kind, count in (("ngram", 1), ("eagle3", 2))
    )
    assert told_by(metrics) == {SESSIONS: 3.0}
    assert set(BOUNDS) >= {RSS, DESCRIPTORS, THREADS, SESSIONS}


async def test_of_a_process_that_tells_no_metrics_the_kernel_says_what_it_holds(tmp_path: Path) -> None:
    here, samples = cast("Child", SimpleNamespace(name="here", pid=os.getpid(), alive=True)), Samples()
    with Logs(tmp_path) as logs:
        logs.hear("here", f"metrics on http://127.0.0.1:{free_ports(1)}/metrics")
        await samples.take([here], logs)
    ((_, held),) = samples.lives[Life("here", os.getpid())]
    assert set(held) == {RSS, DESCRIPTORS, THREADS}


def test_a_process_that_has_ended_and_was_not_waited_for_is_gone() -> None:
    """One that is sampled in that moment must not end the run."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    status = Path(f"/proc/{ended.pid}/status")
    while "\nState:\tZ" not in status.read_text():
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        held_by(ended.pid)
    ended.wait()


def test_what_breaks_a_part_off_is_told_with_what_was_found_by_then() -> None:
    async def breaks() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.01))
        return ""

    said = StringIO()
    fire = Fire(Context(Path(), True, {}, Console(file=said)), 1, Path())
    assert run_out(fire, breaks()).startswith("the run broke off: ExceptionGroup(")
    assert "TimeoutError" in said.getvalue()


def test_a_traceback_is_found_in_either_form_and_the_place_of_the_metrics_too(tmp_path: Path) -> None:
    with Logs(tmp_path) as logs:
        logs.hear("a", "metrics on http://127.0.0.1:1234/metrics")
        logs.hear("a", "Traceback (most recent call last):")
        logs.hear("b", '{"level": "error", "exception": "Traceback (most recent call last):\\n  File"}')
        logs.hear("b", "a fine line")
        assert [each.split(":")[0] for each in logs.tracebacks] == ["a", "b"]
        assert (logs.metrics("a"), logs.metrics("b")) == ("http://127.0.0.1:1234/metrics", None)
    assert (tmp_path / "b.log").read_text().endswith("a fine line\n")


def test_a_tally_is_a_fault_for_each_request_that_ended_as_it_must_not() -> None:
    tally, findings = Tally(), Findings("chaos")
    tally.add(Outcome.SAME, 3, 1, "")
    tally.add(Outcome.UNAVAILABLE, 0, 2, "gone")
    tally.report(findings)
    assert findings.sound and tally.resumed == 1
    for wrong in (Outcome.DIFFERENT, Outcome.HUNG, Outcome.FAILED):
        tally.add(wrong, 0, 1, f"it {wrong}")
    tally.report(again := Findings("chaos"))
    assert [each.split(": ")[1] for each in again.faults] == [Outcome.DIFFERENT, Outcome.HUNG, Outcome.FAILED]
    Tally().report(nothing := Findings("chaos"))
    assert not nothing.sound, "nothing was shown"
    strict = Tally((Outcome.UNAVAILABLE,))
    strict.add(Outcome.SAME, 3, 1, "")
    strict.add(Outcome.UNAVAILABLE, 0, 1, "gone")
    strict.report(refused := Findings("fuzz"))
    assert refused.faults == ["fuzz: UNAVAILABLE: gone"]


async def test_requests_have_gone_on_when_each_has_had_something_more_or_is_over() -> None:
    first, second = (Asking(KNOWN, asked(), Stillness()) for _ in range(2))
    since = time.monotonic()
    first.moved_at = second.moved_at = since - 1.0
    measuring = asyncio.create_task(next_tokens([first, second], since))
    await asyncio.sleep(0.02)
    first.moved_at = since + 0.5
    await asyncio.sleep(0.02)
    assert not measuring.done()
    second.moved_at = since + 2.0
    assert await measuring == pytest.approx(2.0)
    first.over = True
    assert await next_tokens([first], since + 1.0) is not None
    assert await next_tokens([], since) is None


def test_recoveries_are_told_by_their_median_and_worst() -> None:
    recoveries, findings = Recoveries(), Findings("chaos")
    for seconds in (0.5, None, 0.25, 2.0):
        recoveries.add("drafter killed", seconds, alone=True)
    recoveries.add("drafter killed", 3.0, alone=False)
    recoveries.report(findings, {"drafter killed": "< 1 s"})
    assert findings.rows[0]["count"] == "median 0.50 s, worst 2.00 s, of 3" and findings.rows[0]["aim"] == "< 1 s"
    assert [row["count"] for row in findings.rows[1:]] == ["1 of 3", 1, 0] and findings.sound


@pytest.mark.parametrize("alone", [True, False])
def test_a_standstill_is_a_fault_also_of_a_fault_that_was_not_alone(alone: bool) -> None:
    recoveries, findings = Recoveries(), Findings("chaos")
    recoveries.add("verifier killed", STANDSTILL_S, alone=alone)
    recoveries.report(findings, {})
    (fault,) = findings.faults
    assert fault.startswith("chaos: standstills after a fault: verifier killed: 60 s or longer")
    assert ("beside" in fault) is not alone


async def test_when_nothing_comes_to_anybody_that_is_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "STANDSTILL_S", 0.02)
    assert await first_token(list, time.monotonic()) == 0.02
    running = Asking(KNOWN, asked(), Stillness())
    assert await next_tokens([running], time.monotonic()) == 0.02


async def test_the_longest_time_in_which_nothing_came_is_told_and_bounded() -> None:
    stillness, findings = Stillness(_since=time.monotonic() - 5.0), Findings("chaos")
    stillness.mark()
    stillness.mark()
    assert stillness.longest_s == pytest.approx(5.0, abs=1.0)
    stillness.report(findings)
    assert findings.sound
    Stillness(longest_s=STANDSTILL_S).report(findings)
    assert findings.faults == ["chaos: nothing came to any caller for 60.0 s"]


def test_less_than_is_expected_is_a_fault() -> None:
    findings = Findings("chaos")
    findings.at_least("kinds of faults", 1, 1)
    assert findings.sound
    findings.at_least("kinds of faults", 1, 2)
    assert findings.faults == ["chaos: kinds of faults: 1, expected at least 2"]
    assert [expected_kinds(minutes * 60) for minutes in (0.01, 0.5, 5, 12, 120)] == [1, 1, 5, 12, 12]


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--minutes", "-1"], ["--minutes", "nan"], ["--minutes", "x"]])
def test_a_run_without_time_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    assert "is no number of minutes, expected one above 0" in capsys.readouterr().err


def test_a_folder_without_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--models", str(tmp_path)])
    assert f"there is no {tmp_path / 'target'}" in " ".join(capsys.readouterr().err.split())


def test_a_part_that_breaks_off_is_a_fault_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fire: Fire, seconds: float) -> Findings:
        raise RuntimeError(f"at {seconds:g} s")

    def whole(fire: Fire, seconds: float) -> Findings:
        findings = Findings("soak")
        findings.add("requests", 3)
        return findings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.fire.chaos.run", broken)
    monkeypatch.setattr("benchmarks.fire.soak.run", whole)
    machine: dict[str, object] = {"commit": "abc", "date": "today", "load_average_at_start": 0.1}
    chaos, soak = command.burn(Context(tmp_path, True, machine, Console(quiet=True)), ["chaos", "soak"], 2.0, 5)
    assert chaos.faults == ["chaos: broke off: RuntimeError('at 120 s')"] and soak.sound
    written = json.loads((tmp_path / "build" / "results" / "fire.json").read_text())
    assert [row["what"] for row in written["rows"]] == ["run", MUST_NOT_BE, "broke off", "run", MUST_NOT_BE, "requests"]


def test_the_table_keeps_the_rows_of_parts_that_did_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine: dict[str, object] = {"commit": "abc", "date": "today", "load_average_at_start": 0.1}
    fire = Fire(Context(tmp_path, True, machine, Console(quiet=True)), 5, tmp_path)
    for part, count in (("chaos", 1), ("soak", 2), ("chaos", 3)):
        findings = Findings(part)
        findings.add("requests", count)
        findings.must_be_none("hangs", ["one"] if part == "soak" else [])
        written = table.write(fire, 1.0, [findings])
    counts = {row["part"]: row["count"] for row in written.rows if row["what"] == "requests"}
    assert counts == {"chaos": 3, "soak": 2}
    assert [note for note in written.notes if note.startswith(table.WRONG)] == ["Must not be: soak: hangs: one."]
    assert (
        written.notes[1].startswith("The last run was of chaos:")
        and "Kept from earlier runs: soak;" in written.notes[1]
    )
    status = {row["part"]: row["count"] for row in written.rows if row["what"] == MUST_NOT_BE}
    assert status == {"chaos": 0, "soak": 1}
    both = table.write(fire, 1.0, [Findings("chaos"), Findings("soak")])
    assert both.notes == [table.NOTHING_WRONG, *table.NOTES]


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Whatever the process that runs the tests makes of them."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def ended_by(told: signal.Signals) -> Callable[[Fire, float], Findings]:
    """A part during which the run is told to end."""

    def run(fire: Fire, seconds: float) -> Findings:
        async def work() -> str:
            signal.raise_signal(told)
            await fire.ending.wait(seconds)
            return ""

        findings = Findings("chaos")
        findings.must_be_none("left over", [left] if (left := run_out(fire, work())) else [])
        return findings

    return run


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("told", SIGNALS)
def test_a_part_that_is_told_to_end_is_judged_written_and_the_last(
    told: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.fire.chaos.run", ended_by(told))
    machine: dict[str, object] = {"commit": "abc", "date": "today", "load_average_at_start": 0.1}
    ending = Ending()
    with ending.heeded():
        (chaos,) = command.burn(
            Context(tmp_path, True, machine, Console(quiet=True)), ["chaos", "soak"], 2.0, 5, ending
        )
    early = f"chaos: ended early: told to by {told.name}, 0 s after its start; it was to last 120 s"
    assert chaos.faults == [early]
    written = json.loads((tmp_path / "build" / "results" / "fire.json").read_text())
    assert [row["what"] for row in written["rows"]] == ["run", MUST_NOT_BE, "left over", "ended early"]
    assert f"{table.WRONG}{early}." in written["notes"]
    with pytest.raises(SystemExit, match=f"^{128 + told}$"):
        ending.leave()


@pytest.mark.usefixtures("usual_signals")
def test_a_run_that_is_told_to_end_while_a_part_starts_ends_there() -> None:
    fire = Fire(Context(Path(), True, {}, Console(quiet=True)), 1, Path())
    with fire.ending.heeded(), pytest.raises(SystemExit, match=r"^143$"), fire.ending.starting():
        _told_to_end()
    with pytest.raises(SystemExit, match=r"^143$"), fire.cluster("chaos"):
        pytest.fail("its processes were started")


def _told_to_end() -> None:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)


@pytest.mark.usefixtures("usual_signals")
def test_only_ctrl_c_cuts_short_how_a_run_ends() -> None:
    ending = Ending()
    with ending.heeded():
        for each in (signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(each)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert ending.by == "SIGHUP" and ending.sooner(math.inf) == ending.at <= time.monotonic()


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_that_is_ignored_stays_so_and_the_others_are_as_they_were() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with (ending := Ending()).heeded():
        signal.raise_signal(signal.SIGHUP)
    assert not ending.by and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.slow
def test_sigterm_ends_the_command_with_its_processes_and_a_table(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
from benchmarks.fire import command, soak
from benchmarks.fire.findings import Findings
from benchmarks.fire.verdict import run_out

def run(fire, seconds):
    with subprocess.Popen(["sleep", "60"]) as child:
        async def work():
            print(child.pid, flush=True)
            await fire.ending.wait(seconds)
            return ""

        run_out(fire, work())
        child.terminate()
    return Findings("soak")

soak.run = run
os.chdir(sys.argv[1])
command.main(["soak", "--short", "--models", sys.argv[2]])
"""
    words = [sys.executable, "-c", script, str(tmp_path), str(Path("models/pocket").absolute())]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        pid = next(int(line) for line in run.stdout if line.strip().isdecimal())
        run.terminate()
        said = run.stdout.read()
        assert "told to end" in run.stderr.read() and run.wait() == 128 + signal.SIGTERM, said
    assert not Path(f"/proc/{pid}").exists()
    assert "told to by SIGTERM" in (tmp_path / "build" / "results" / "fire.md").read_text()


def test_what_is_told_is_shown_as_it_is_whatever_brackets_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine: dict[str, object] = {"commit": "abc", "date": "today", "load_average_at_start": 0.1}
    told = StringIO()
    fire = Fire(Context(tmp_path, True, machine, Console(file=told, width=200)), 5, tmp_path)
    findings = Findings("chaos")
    findings.must_be_none("tracebacks", ["there is no [/grpc.health.v1.Health/Check] [red]"])
    findings.add("[/x]", "[/y]")
    fire.say("[/z]")
    table.write(fire, 1.0, [findings])
    assert all(each in told.getvalue() for each in ("[/grpc.health.v1.Health/Check] [red].", "[/x]", "[/y]", "[/z]"))

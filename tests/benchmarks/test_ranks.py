"""What the benchmark of rank groups draws, reads and sums up; no processes."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from benchmarks.known import Known
from benchmarks.ports import free_ports
from benchmarks.ranks.arrivals import WIDTH_S, bursts, kills
from benchmarks.ranks.bench import Cell, Turns, Wakes
from benchmarks.ranks.counters import Counters, Processor, counted
from benchmarks.ranks.group import is_parked, is_whole, rank_of
from benchmarks.ranks.table import turn_row, wake_rows, weights_note
from benchmarks.ranks.tally import Answered, Killed, Outcome, Tally
from benchmarks.ranks.wave_log import WaveLog, delays
from benchmarks.ranks.weights import Weights, weights
from benchmarks.scrape import sum_of
from specsplit.membership import GroupRank, Member, WaveReport
from specsplit.observe.metrics import VerifierMetrics
from specsplit.values import ModelInfo, Vocabulary

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
SAME = Answered(sent=10.0, ended=11.0, first_token_s=0.5, outcome=Outcome.SAME, tokens=3)


def wave(at: str, number: int, *, parked: bool) -> str:
    stands = "parked" if parked else "begun"
    return f'{{"time": "2026-01-01T00:00:{at}Z", "level": "debug", "message": "wave {number}: {stands}"}}\n'


def member(rank: int, group: str = "a", *, parked: bool = True, wanted: bool = False) -> Member:
    role = ModelInfo("target", Vocabulary(8), 64)
    return Member(str(rank), "a:1", role, 1, group=GroupRank(group, rank, 2), wave=WaveReport(1, parked, wanted))


def test_a_seed_draws_the_same_bursts_and_kills_again() -> None:
    some = list(islice(bursts(3, texts=4, longest=64), 200))
    assert some == list(islice(bursts(3, texts=4, longest=64), 200)) != list(islice(bursts(4, 4, 64), 200))
    assert list(islice(kills(3, 4), 50)) == list(islice(kills(3, 4), 50))
    assert {request.text for burst in some for request in burst.requests} == set(range(4))
    assert {kill.rank for several in islice(kills(3, 4), 50) for kill in several} == set(range(4))
    for burst in some:
        after_s = [request.after_s for request in burst.requests]
        assert after_s == sorted(after_s) and after_s[0] == 0.0 and after_s[-1] <= WIDTH_S
    assert {burst.near_end for burst in some} == {True, False}
    assert min(burst.pause_s for burst in some if not burst.near_end) >= 0 > min(burst.pause_s for burst in some)


def test_the_ends_of_waves_are_read_from_the_logs_of_rank_0_as_they_grow(tmp_path: Path) -> None:
    first = tmp_path / "run" / "attempt_0" / "0" / "stderr.log"
    first.parent.mkdir(parents=True)
    log = WaveLog(tmp_path)
    log.look()
    half = wave("03.000", 2, parked=True)
    first.write_text(wave("01.000", 1, parked=False) + wave("02.500", 1, parked=True) + "{}\n" + half[:20])
    log.look()
    assert (log.begun, [park % 60 for park in log.parks]) == (1, [2.5])
    with first.open("a") as more:
        more.write(half[20:] + wave("04.000", 2, parked=False) + wave("05.000", 3, parked=False))
    again = tmp_path / "run" / "attempt_1" / "0" / "stderr.log"
    again.parent.mkdir(parents=True)
    again.write_text(wave("30.000", 1, parked=False))
    log.look()
    assert (log.begun, [park % 60 for park in log.parks]) == (4, [2.5, 5.0]), "wave 3 followed 2 without a rest"


def test_how_long_a_wave_outlasts_its_last_request_is_told_where_one_was_just_before() -> None:
    assert delays([1.5, 9.0, 12.25], ends=[1.0, 1.25, 12.0]) == [0.25, 0.25]
    assert delays([0.5], ends=[1.0]) == []


def test_a_tally_is_sound_only_if_every_request_had_its_text_and_nothing_is_left() -> None:
    assert not Tally().sound, "nothing was shown"
    assert Tally([SAME]).sound
    wrong = Answered(20.0, 21.0, None, Outcome.LOST, 0, why="gone")
    assert not Tally([SAME, wrong]).sound and not Tally([SAME], left="something").sound
    assert Tally([SAME, wrong], left="something").faults == ["lost after 1.0 s: gone", "something"]


def test_a_tally_counts_what_came_as_a_wave_ended_and_leaves_out_what_a_kill_held_up() -> None:
    answered = [Answered(sent, sent + 1.0, sent, Outcome.SAME, 2) for sent in (4.99, 5.015, 6.0, 8.5)]
    tally = Tally(answered, [Killed(9.0, 1, 1, again=False, whole_at=20.0)], parks=[1.0, 5.0, 7.0])
    found = {row["what"]: row["count"] for row in tally.rows}
    assert tally.from_park(4.99) == pytest.approx(-0.01) and Tally().from_park(1.0) == float("inf")
    assert found["requests sent within 20 ms of the end of a wave"] == 2
    assert found["of these before it"] == 1
    assert found["of these with requests running"] == 1
    assert found["time to the first token away from kills, longest, ms"] == 6000
    assert found["time to the first token, longest, s"] == 8.5


def test_a_text_is_right_if_it_is_the_beginning_of_the_known_one_and_as_long_as_was_asked() -> None:
    known = Known((1,), 0.0, 0, (5, 6, 7))
    assert known.begins_with([5, 6], 2)
    assert not known.begins_with([5], 2) and not known.begins_with([5, 6, 7], 2) and not known.begins_with([5, 7], 2)


def test_counters_are_what_a_verifier_tells() -> None:
    registry = CollectorRegistry()
    registry.register(cast("Collector", VerifierMetrics(on=True).instruments))
    assert counted(generate_latest(registry).decode()) == Counters()
    assert Counters(steps=1, idle=3).idle_share == 0.75
    assert Counters(steps=3) - Counters(steps=1) + Counters(idle=2) == Counters(steps=2, idle=2)
    assert sum_of('# TYPE a counter\na_total{b="c"} 1\na_total{b="d"} 2\n', "a_total") == 3


def test_a_process_tells_its_processor_time() -> None:
    used = Processor.of([os.getpid()])
    assert used.seconds > 0 and used.switches > 0


def test_a_group_is_whole_if_all_its_ranks_are_there_and_parked_if_all_say_so() -> None:
    assert is_whole((member(0), member(1)), 2)
    assert not is_whole((member(0),), 2) and not is_whole((member(0), member(1, "b")), 2)
    assert is_parked((member(0), member(1)))
    assert not is_parked((member(0), member(1, parked=False))) and not is_parked((member(0), member(1, wanted=True)))
    assert rank_of(os.getpid()) is None
    assert 1024 < free_ports(3) < 32768


def test_rows_of_turns_and_wakes_are_medians_and_shares() -> None:
    turns = Turns([10.0, 20.0, 30.0], [5.0], Counters(steps=1, idle=3, imbalance=8.0, turns=2, forward_s=0.5), [1, 1])
    row = turn_row(Cell("group", "none", 1), turns)
    assert (row["turns_per_s"], row["idle_share"], row["imbalance"], row["forward_ms"]) == (20.0, 0.75, 4.0, 500.0)
    rows = wake_rows({"group": Wakes([1.0, 2.0, 3.0], [4.0], [5.0]), "alone": Wakes([6.0], [7.0])})
    assert [(row["p50"], row["times"]) for row in rows] == [(2.0, 3), (4.0, 1), (5.0, 1), (6.0, 1), (7.0, 1)]


def test_the_sharded_part_of_the_weights_falls_as_one_by_the_number_of_ranks() -> None:
    by_size = {size: weights(POCKET, size) for size in (1, 2, 4)}
    assert by_size[2] == Weights(by_size[1].sharded // 2, by_size[1].whole)
    assert by_size[4] == Weights(by_size[1].sharded // 4, by_size[1].whole)
    assert "N = 4" in weights_note(by_size) and "0.25 of N = 1" in weights_note(by_size)

"""The laboratory's own arithmetic, worked by hand; no models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.lab.arrivals import Burst, Closed, Poisson, Steady, Trace
from benchmarks.lab.command import files_of
from benchmarks.lab.cores import Cores
from benchmarks.lab.cost import ExpansionCurve, StepCurve
from benchmarks.lab.events import Timeline
from benchmarks.lab.figures import figures, measured
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.ledger import covered_s
from benchmarks.lab.replay import ReplaySource
from benchmarks.lab.scenario import DrafterSpec, Policy, Scenario
from benchmarks.lab.scenarios import DEFAULT
from benchmarks.lab.trace import FORMAT, Header, Level, row, write
from benchmarks.lab.trace import Trace as Recorded
from benchmarks.lab.transport import Link, Wire
from specsplit.values import PlanChanges
from specsplit_verifier.records.step import SessionResult
from tests.support.slow import slowly

TRACES = Path(__file__).resolve().parents[2] / "benchmarks" / "lab" / "traces"
HEADER = Header("target", "draft", "standalone", by_depth=False)
SURE = Level(0, (0.9, 0.05))


def recorded(tmp_path: Path, levels: list[list[Level]], header: Header = HEADER, first: int = 1) -> Recorded:
    file = tmp_path / "trace.jsonl"
    write(file, header, [row("a", first + number, of_root) for number, of_root in enumerate(levels)])
    return Recorded.read(file)


def steps_of(laboratory: Laboratory) -> list[SessionResult]:
    return [session for step in laboratory.ledger.stepped for session in step.sessions]


def test_of_equal_times_what_was_arranged_first_happens_first() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.after(2.0, lambda: seen.append("late"))
    timeline.after(1.0, lambda: (seen.append("early"), timeline.after(0.0, lambda: seen.append("then")))[0])
    timeline.after(1.0, lambda: seen.append("early too"))
    timeline.run()
    assert seen == ["early", "early too", "then", "late"]
    assert timeline.clock.now() == 2.0


def test_a_message_leaves_behind_the_one_before_it_and_arrives_one_delay_later() -> None:
    timeline, arrived = Timeline(), list[tuple[float, int]]()
    wire = Wire(timeline, Link(5.0, bytes_per_s=1000), lambda m: arrived.append((timeline.clock.now(), len(m))))
    wire.send(bytes(100))
    wire.send(bytes(20))
    timeline.after(1.0, lambda: wire.send(b""))
    timeline.run()
    assert arrived == [(pytest.approx(0.105), 100), (pytest.approx(0.125), 20), (pytest.approx(1.005), 0)]
    assert (wire.messages, wire.bytes) == (3, 120)


def test_costs_are_straight_lines() -> None:
    assert StepCurve(5.9, 21.0, 39.0).seconds(100, 10_000) == pytest.approx(5.9e-3 + 2.1e-3 + 0.39e-3)
    assert ExpansionCurve(2.0, 10.0).seconds(64) == pytest.approx(2.64e-3)


def test_requests_come_as_their_arrivals_say() -> None:
    assert list(Closed(3).moments()) == [0.0, 0.0, 0.0]
    assert list(islice(Steady(4.0).moments(), 3)) == [0.0, 0.25, 0.5]
    assert list(islice(Burst(2, 1.5).moments(), 5)) == [0.0, 0.0, 1.5, 1.5, 3.0]
    assert list(Trace((2.0, 1.0)).moments()) == [1.0, 2.0]
    some = list(islice(Poisson(10.0, seed=1).moments(), 2000))
    assert some == list(islice(Poisson(10.0, seed=1).moments(), 2000))
    assert some == sorted(some)
    assert some[-1] == pytest.approx(200, rel=0.1)


def test_time_in_which_there_were_two_requests_counts_once() -> None:
    assert covered_s([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4


def test_a_serial_session_takes_the_time_that_its_parts_add_up_to(tmp_path: Path) -> None:
    # The prompt has two tokens. A step from 0 to 10 ms reads them, and commits a token; meanwhile the drafter hears of the session at 1,
    # draws two levels until 5, and they arrive at 6. The first of them is what was committed. The drafter hears of that at 11, draws one
    # level more until 13, and it arrives at 14, so a step from 14 to 24 commits two nodes and a bonus, which is the last token.
    trace = recorded(tmp_path, [[SURE]] * 4)
    plan = PlanChanges(num_steps=2, topk=1, num_draft_tokens=3, draft_ahead=False, wait_budget_us=1_000_000)
    scenario = Scenario("tiny", step=StepCurve(10.0), link=Link(1.0), plan=plan, requests=1)
    laboratory = Laboratory(scenario, ReplaySource(trace))
    (entry,) = laboratory.run().entries
    assert entry.tokens == [2, 3, 4, 5]
    assert entry.first_at == pytest.approx(0.010)
    assert entry.ended_at == pytest.approx(0.024)
    assert [session.accepted for session in steps_of(laboratory)] == [0, 2]
    found = figures(scenario, laboratory)
    assert found["rate"] == pytest.approx(4 / 0.024)
    assert found["expansions"] == 3 / 2
    assert found["idle"] == pytest.approx(1 - 6 / 24)


def ends(contention: float, work_s: float, expansions: Sequence[tuple[float, float]], begins: float = 0.0) -> float:
    """When a step ends that begins then, if expansions of so many seconds begin at these moments."""
    timeline, ended = Timeline(), list[float]()
    cores = Cores(timeline, contention)
    for moment, seconds in expansions:
        timeline.at(moment, partial(cores.take, seconds))
    timeline.at(begins, lambda: cores.step(work_s, lambda: ended.append(timeline.clock.now())))
    timeline.run()
    (end,) = ended
    return end


@pytest.mark.parametrize(
    ("contention", "expansions", "begins", "end"),
    [
        (0.0, [(0.0, 9.0)], 0.0, 4.0),
        (0.5, [], 0.0, 4.0),
        (0.5, [(1.0, 2.0)], 0.0, 5.0),  # half of two seconds
        (0.5, [(1.0, 2.0), (3.0, 2.0)], 0.0, 6.0),
        (0.5, [(1.0, 9.0)], 0.0, 7.0),  # it ends before the expansion does: three seconds of work take six
        (1.0, [(1.0, 2.0)], 0.0, 6.0),  # it stands still
        (0.5, [(0.0, 3.0)], 1.0, 6.0),  # it begins beside an expansion of which two seconds are left
        (0.5, [(0.0, 1.0)], 2.0, 6.0),
    ],
)
def test_an_expansion_stretches_the_step_that_it_takes_cores_from(
    contention: float, expansions: Sequence[tuple[float, float]], begins: float, end: float
) -> None:
    assert ends(contention, 4.0, expansions, begins) == pytest.approx(end)


@pytest.mark.parametrize("cores", [1, *slowly(2)])
def test_on_its_verifiers_cores_a_drafter_wastes_one_expansion_for_two_that_are_used_and_is_no_slower(
    cores: int,
) -> None:
    source = ReplaySource(Recorded.read(TRACES / "standalone.jsonl"))
    told, untold = (
        measured(Scenario("shared", requests=6, shared_cores=cores, priced=priced), source) for priced in (True, False)
    )
    assert 2 * float(str(told["wasted"])) <= float(str(told["used"]))
    assert float(str(told["rate"])) >= float(str(untold["rate"]))


def test_cores_are_shared_with_one_drafter_at_most() -> None:
    with pytest.raises(ValueError, match="one drafter at most"):
        Scenario("crowd", drafters=(DrafterSpec(), DrafterSpec()), shared_cores=2)


def test_without_drafters_every_step_commits_one_token(tmp_path: Path) -> None:
    scenario = Scenario("alone", drafters=(), step=StepCurve(10.0), requests=1)
    found = measured(scenario, ReplaySource(recorded(tmp_path, [[SURE]] * 4)))
    assert found["rate"] == pytest.approx(4 / 0.040)
    assert found["idle"] == 1.0


def test_callers_who_are_done_at_the_same_moment_send_no_more_than_there_is(tmp_path: Path) -> None:
    scenario = Scenario("three for two", drafters=(), step=StepCurve(10.0), arrivals=Closed(2), requests=3)
    ledger = Laboratory(scenario, ReplaySource(recorded(tmp_path, [[SURE]] * 4))).run()
    assert [len(entry.tokens) for entry in ledger.entries] == [4, 4, 4]


def test_bandwidth_slows_what_is_drafted(tmp_path: Path) -> None:
    source = ReplaySource(recorded(tmp_path, [[SURE]] * 40))
    fast, slow = (
        measured(Scenario("wire", link=Link(1.0, bytes_per_s=rate), requests=1), source)["rate"] for rate in (1e9, 1e3)
    )
    assert isinstance(fast, float) and isinstance(slow, float) and slow < 0.8 * fast


def test_a_drafter_sends_no_more_than_the_wire_can_bear() -> None:
    source = ReplaySource(Recorded.read(TRACES / "standalone.jsonl"))
    fast, slow = (
        measured(Scenario("wire", link=Link(1.0, bytes_per_s=rate), requests=2), source)["pushed"]
        for rate in (1e9, 2e4)  # the slow one takes 400 bytes in a step
    )
    assert isinstance(fast, float) and isinstance(slow, float) and slow < 60 < fast


def test_a_chain_is_accepted_as_far_as_it_was_recorded(tmp_path: Path) -> None:
    miss = Level(-1, (0.9, 0.05))
    second = Level(1, (0.5, 0.4))
    trace = recorded(tmp_path, [[SURE], [SURE], [miss], [SURE], [second], [SURE], [SURE], [SURE]])
    plan = PlanChanges(num_steps=4, topk=1, num_draft_tokens=5, draft_ahead=False, wait_budget_us=1_000_000)
    laboratory = Laboratory(Scenario("chain", plan=plan, requests=1), ReplaySource(trace))
    laboratory.run()
    assert [session.accepted for session in steps_of(laboratory)] == [0, 1, 1, 2], "the first step reads the prompt"


def test_a_trace_of_accepted_lengths_alone_is_a_chain(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    header = {"target": "t", "drafter": "d", "kind": "eagle3", "by_depth": True}
    rows = [
        {"request": "x", "position": 7 + n, "accepted": accepted} for n, accepted in enumerate([[1, 2], [1, 1], [0, 0]])
    ]
    write(file, Header(**header), rows)
    trace = Recorded.read(file)
    assert trace.level(0, 7, 1) == Level(0, (0.5,))
    assert trace.level(0, 8, 0) == Level(0, (2 / 3,))
    assert trace.level(0, 8, 1) == Level(-1, (0.5,))
    assert trace.level(0, 9, 0).rank == -1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "first line has no format"),
        ('{"format": "else"}\n', "first line has no format"),
        (f'{{"format": "{FORMAT}"}}\n{{"position": 1}}\n', "line 2 .* has no 'request'"),
        (f'{{"format": "{FORMAT}"}}\nnothing\n', "line 2 is no JSON"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=problem):
        Recorded.read(file)


def test_a_trace_with_a_gap_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    write(file, HEADER, [row("a", position, [SURE]) for position in (3, 5)])
    with pytest.raises(ValueError, match=r"request a .* lacks positions"):
        Recorded.read(file)


def first_levels(trace: Recorded, count: int) -> Recorded:
    requests = [{at: levels[:count] for at, levels in request.items()} for request in trace.requests]
    return Recorded(trace.header, requests)


@pytest.mark.parametrize("levels", [8, 16, *slowly(6, 10)])
@pytest.mark.parametrize("name", ["eagle3", *slowly("standalone")])
def test_oracles_keep_what_they_promise_on_the_recorded_traces(name: str, levels: int) -> None:
    source = ReplaySource(first_levels(Recorded.read(TRACES / f"{name}.jsonl"), levels))
    rates: dict[Policy, float] = {}
    for policy in (Policy.STATIC, Policy.KNOWS_TOKENS, Policy.DRAFTS_TOKENS):
        scenario = Scenario("oracle", policy=policy, drafters=(DrafterSpec(),))
        laboratory = Laboratory(scenario, source)
        laboratory.run()
        rates[policy] = float(str(figures(scenario, laboratory)["rate"]))
        steps = steps_of(laboratory)
        if policy is Policy.KNOWS_TOKENS:
            assert all(session.accepted_path[-1] == session.drafted for session in steps)
        if policy is Policy.DRAFTS_TOKENS:
            assert all(session.accepted == session.drafted for session in steps)
    assert rates[Policy.STATIC] < rates[Policy.DRAFTS_TOKENS] > rates[Policy.KNOWS_TOKENS]


@pytest.mark.parametrize("file", sorted(TRACES.glob("*.jsonl")), ids=lambda file: file.stem)
def test_every_trace_that_is_kept_can_be_replayed(file: Path) -> None:
    source = ReplaySource(Recorded.read(file))
    scenario = source.fitted(Scenario("kept", requests=1))
    (entry,) = Laboratory(scenario, source).run().entries
    assert [*entry.request.tokens, *entry.tokens] == list(source.truth(entry.request))


def test_a_run_of_other_groups_leaves_the_files_of_the_usual_ones_alone() -> None:
    assert files_of(DEFAULT) == "lab"
    assert files_of(["refresh", "unpaced"]) == "lab-refresh-unpaced"


@pytest.mark.slow
def test_a_run_is_the_same_every_time() -> None:
    source = ReplaySource(Recorded.read(TRACES / "eagle3.jsonl"))
    scenario = Scenario(
        "batch", verifiers=2, drafters=(DrafterSpec(), DrafterSpec()), arrivals=Poisson(8.0), requests=8
    )
    assert measured(scenario, source) == measured(scenario, source)

"""A step as values, without threads or sockets; and a whole engine in the time of a clock that is turned by hand."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from specsplit.clock import ManualClock, SystemClock
from specsplit.draft_events import Open, ToDrafter
from specsplit.model import CostCurve, Paced
from specsplit.model.layers.capture import decoder_layers
from specsplit.sessions import DecodeRequest, Finished
from specsplit.settings import VerifierSettings
from specsplit.speculation import Commit, Grow, Mirror
from specsplit.values import Endpoint, Stopping
from specsplit.wire import drafter
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.engine.engine import Engine
from specsplit_verifier.engine.inbox import Bell, Inbox
from specsplit_verifier.records.events import FromDrafter, Output, Outputs, Sends
from specsplit_verifier.records.step import StepInput, StepOutput, StepResult
from specsplit_verifier.target.runner import TargetRunner


def test_an_idle_step_of_a_target_that_is_not_shared_computes_nothing(alphabet: Path) -> None:
    runner = load_target(VerifierSettings(model=alphabet), SystemClock())
    layers: list[torch.Size] = []
    decoder = decoder_layers(runner.target.model)
    assert decoder is not None
    hook = decoder[0].register_forward_pre_hook(lambda _, args: layers.append(args[0].shape))
    output = runner.run(StepInput())
    hook.remove()
    assert layers == []
    assert (output.accepted, output.features, output.failed) == ({}, [], {})
    assert not runner.target.kv.data.any()


def test_a_trial_runs_one_token_and_leaves_nothing(alphabet: Path) -> None:
    target = load_target(VerifierSettings(model=alphabet), SystemClock()).target
    layers: list[torch.Size] = []
    decoder = decoder_layers(target.model)
    assert decoder is not None
    hook = decoder[0].register_forward_pre_hook(lambda _, args: layers.append(args[0].shape))
    target.trial()
    hook.remove()
    assert [shape[:2] for shape in layers] == [(1, 1)] and not target.kv.data.any()


class TurningInbox(Inbox):
    """Whoever would wait here for a time turns the clock instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def _sleep(self, bell: Bell, seconds: float | None) -> None:
        if seconds is None:
            bell.get()
        elif bell.empty():
            self._clock.advance(seconds)
        else:
            bell.get()


class Collected:
    """An outbox that keeps everything."""

    watching, watched = True, frozenset[int]()

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.results: list[StepResult] = []
        self.over = threading.Event()

    def deliver(self, outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
        self.outputs += [output for _, output in outputs]
        self.results += [] if result is None else [result]
        if any(isinstance(output, Finished) for _, output in outputs):
            self.over.set()

    def died(self, why: str = "") -> None:
        self.over.set()


def test_a_whole_engine_runs_in_the_time_of_its_clock(alphabet: Path) -> None:
    settings, clock, outbox = VerifierSettings(model=alphabet), ManualClock(1000.0), Collected()
    target = load_target(settings, clock).target
    runner = TargetRunner(target, Paced(CostCurve(base_ms=3000.0), clock, clock.advance), None, clock)
    engine = Engine(runner, settings, outbox, clock, TurningInbox(clock))
    engine.post(DecodeRequest("r", list(b"abc"), stopping=Stopping(20), session=1))
    engine.start()
    assert outbox.over.wait(60)
    engine.stop()
    assert isinstance(outbox.outputs[-1], Finished) and outbox.outputs[-1].usage.completion_tokens == 20
    assert [each.started for each in outbox.results] == [1000.0 + 3.0 * step for step in range(20)], (
        "the first one read the prompt too"
    )
    assert {(each.forward_us, each.host_us, each.waited_us) for each in outbox.results} == {(3e6, 0.0, 0.0)}
    assert clock.now() == 1060.0 and engine.statistics().load.step_ms > 1000


class Drafted(Collected):
    """One that answers the open with a node, and keeps what the drafter is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[ToDrafter] = []
        self.inbox: Inbox | None = None

    def deliver(self, outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
        for address, session, event in sends:
            self.told.append(event)
            if isinstance(event, Open) and self.inbox is not None:
                self.inbox.put(FromDrafter(address, [(session, Grow(0, (7,), (0,), (65,), (-9.0,)))]))
        super().deliver(outputs, sends, result)


def told_of_steps(alphabet: Path, base_ms: float) -> list[ToDrafter]:
    """What a drafter of two sessions is told, where a step takes so long."""
    settings, clock, outbox = VerifierSettings(model=alphabet), ManualClock(), Drafted()
    runner = TargetRunner(
        load_target(settings, clock).target, Paced(CostCurve(base_ms=base_ms), clock, clock.advance), None, clock
    )
    outbox.inbox = TurningInbox(clock)
    engine = Engine(runner, settings, outbox, clock, outbox.inbox)
    for session in (1, 2):
        drafter = Endpoint("d", "d:1")
        engine.post(DecodeRequest("r", list(b"abc"), stopping=Stopping(40), drafter=drafter, session=session))
    engine.start()
    assert outbox.over.wait(60)
    engine.stop()
    return outbox.told


def test_what_is_grown_during_a_step_is_taken_in_before_the_step_is_over(
    alphabet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, clock, outbox, applied = VerifierSettings(model=alphabet), ManualClock(), Drafted(), threading.Event()
    grow, in_time = Mirror.grow, list[bool]()

    def growing(self: Mirror, grown: Grow) -> int:
        applied.set()
        return grow(self, grown)

    def computing(seconds: float) -> None:
        clock.advance(seconds)
        in_time.append(applied.wait(10))  # during the first step, which opens the drafter, it grows

    monkeypatch.setattr(Mirror, "grow", growing)
    paced = Paced(CostCurve(base_ms=500.0), clock, computing)
    outbox.inbox = TurningInbox(clock)
    engine = Engine(
        TargetRunner(load_target(settings, clock).target, paced, None, clock), settings, outbox, clock, outbox.inbox
    )
    engine.post(DecodeRequest("r", list(b"abc"), stopping=Stopping(2), drafter=Endpoint("d", "d:1"), session=1))
    engine.start()
    assert outbox.over.wait(60)
    engine.stop()
    assert all(in_time)


def test_a_drafter_is_told_how_long_steps_take_and_which_nodes_had_come(alphabet: Path) -> None:
    told = told_of_steps(alphabet, base_ms=500.0)
    assert [event.step_us for event in told if isinstance(event, Open)] == [0, 0], "there has been no step"
    commits = [event for event in told if isinstance(event, Commit)]
    assert {commit.seen for commit in commits} == {7}
    assert 490_000 < commits[-1].step_us < 550_000


def test_of_steps_that_take_hours_a_drafter_is_told_what_the_wire_holds(alphabet: Path) -> None:
    told = told_of_steps(alphabet, base_ms=1e7)
    assert {event.step_us for event in told[-5:] if isinstance(event, Commit)} == {1_000_000_000}
    drafter.draft_request((1, event) for event in told)


def test_values_of_a_step_are_empty_where_nothing_was_stepped() -> None:
    step = StepInput()
    assert (step.rows, step.tokens, step.layers, step.sessions) == ([], 0, frozenset(), [])
    assert StepOutput() == StepOutput({}, (), {}, (), 0.0, 0.0)

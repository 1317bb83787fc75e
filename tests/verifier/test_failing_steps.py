"""Steps whose forward fails, through an engine's core by hand: no thread, no event loop, no queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specsplit.clock import ManualClock
from specsplit.errors import TargetFailed
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import VerifierSettings
from specsplit.values import Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.engine.engine import core_of
from specsplit_verifier.policy.planner import Pause
from specsplit_verifier.records.events import Cancel, Output
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.target.runner import TargetRunner

TOKENS = 12


@pytest.fixture(scope="module")
def runner(alphabet: Path) -> TargetRunner:
    return load_target(VerifierSettings(model=alphabet), ManualClock())


@pytest.fixture
def core(alphabet: Path, runner: TargetRunner) -> Iterator[EngineCore]:
    settings, target = VerifierSettings(model=alphabet), runner.target
    core = core_of(target.info, target.pool, runner.extractor.recipe, settings, ManualClock())
    yield core
    load = core.statistics().load
    assert (load.sessions, load.free_pages) == (0, load.total_pages)


class Fails:
    """Fails the forwards with these numbers, counted from 0."""

    def __init__(self, runner: TargetRunner, numbers: range) -> None:
        self.seen = 0
        self._numbers = numbers
        self._hook = runner.target.model.register_forward_pre_hook(self._before)

    def _before(self, *_: Any) -> None:
        self.seen += 1
        if self.seen - 1 in self._numbers:
            raise torch.OutOfMemoryError("none left, just now")

    def __enter__(self) -> Fails:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def stepped(core: EngineCore, runner: TargetRunner, results: list[StepResult] | None = None) -> list[Output]:
    """Everything that comes of one session, step by step; what each step was goes into `results`."""
    results = [] if results is None else results
    core.handle(DecodeRequest("r", list(b"...a"), stopping=Stopping(TOKENS), session=1))
    told: list[Output] = []
    while core.unfinished:
        step = core.schedule()
        assert not isinstance(step, Pause)
        results.append(core.commit(step, runner.run(step)))
        told += [output for _, output in core.outgoing()[0]]
    return told


def text_of(told: list[Output]) -> bytes:
    return bytes(token for output in told if isinstance(output, Tokens) for token in output.tokens)


@pytest.mark.parametrize("at", range(TOKENS))
def test_a_step_of_one_session_that_fails_once_is_tried_again_and_its_text_is_the_same(
    core: EngineCore, runner: TargetRunner, at: int
) -> None:
    results: list[StepResult] = []
    with Fails(runner, range(at, at + 1)) as fails:
        told = stepped(core, runner, results)
    assert text_of(told) == b"bcdefghijklm" and isinstance(told[-1], Finished)
    assert fails.seen > at + 1
    assert not any(result.failed for result in results)
    assert results[at].cold, "its time says nothing of others"


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_step_of_one_session_that_fails_twice_hands_it_back_with_what_it_has(
    core: EngineCore, runner: TargetRunner, at: int
) -> None:
    with Fails(runner, range(at, at + 2)) as fails:
        told = stepped(core, runner)
    assert b"bcdefghijklm".startswith(text_of(told))
    assert isinstance(told[-1], TargetFailed) and fails.seen == at + 3, (
        "tried twice, then a trial shows that the target is well"
    )
    assert str(told[-1]) == "the target failed on this session, twice in a row: OutOfMemoryError: none left, just now"


def test_a_target_that_fails_on_a_trial_too_ends_the_engine(core: EngineCore, runner: TargetRunner) -> None:
    with Fails(runner, range(1, 100)), pytest.raises(torch.OutOfMemoryError):
        stepped(core, runner)
    core.handle(Cancel(1))

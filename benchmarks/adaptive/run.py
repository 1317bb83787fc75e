"""One run of one contender: what was committed in every phase, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from benchmarks.adaptive.phases import PhasedSource
from benchmarks.lab.ledger import Ledger
from benchmarks.lab.scenario import Scenario
from specsplit_verifier.records.step import StepResult

PlanInForce = tuple[int, int]
"""num_steps and num_draft_tokens."""


@dataclass(frozen=True)
class StepTaken:
    """One step of a run."""

    phase: int
    """The phase of the session in the middle, if sessions stand in order of their phases."""
    seconds: float
    """Since the end of the step before: waits, and prompts that were read alone, included."""
    committed: int
    sessions: int
    drafted: int
    plan: PlanInForce
    """The plan of most of its sessions."""


@dataclass(frozen=True)
class Run:
    """The steps of one contender, while all callers were there."""

    steps: Sequence[StepTaken]

    def rate(self, phase: int | None = None) -> float:
        """Committed tokens per second, in one phase or in all."""
        return rate_of([step for step in self.steps if phase in (None, step.phase)])

    def first(self, phase: int, steps: int) -> float:
        """Committed tokens per second in the first steps of a phase."""
        return rate_of([step for step in self.steps if step.phase == phase][:steps])

    def per_session(self, phase: int) -> tuple[float, float]:
        """accept_length, and tokens verified, of one session in one step of a phase."""
        steps = [step for step in self.steps if step.phase == phase]
        sessions = sum(step.sessions for step in steps)
        return sum(step.committed for step in steps) / sessions, 1 + sum(step.drafted for step in steps) / sessions

    @property
    def switches(self) -> list[int]:
        """The numbers of the steps that had another plan than the step before."""
        plans = [step.plan for step in self.steps]
        return [number for number in range(1, len(plans)) if plans[number] != plans[number - 1]]


def rate_of(steps: Sequence[StepTaken]) -> float:
    """Committed tokens per second of some steps."""
    return sum(step.committed for step in steps) / sum(step.seconds for step in steps)


def run_of(ledger: Ledger, source: PhasedSource, scenario: Scenario) -> Run:
    """What a run was until a caller had nothing more to ask."""
    last_came = ledger.entries[-1].came
    until = min(entry.ended_at for entry in ledger.entries if entry.ended_at is not None and entry.ended_at > last_came)
    taken: list[StepTaken] = []
    before = 0.0
    for step in ledger.stepped:
        if step.ended > until:
            break
        taken.append(_taken(step, step.ended - before, source, scenario))
        before = step.ended
    return Run(taken)


def _taken(step: StepResult, seconds: float, source: PhasedSource, scenario: Scenario) -> StepTaken:
    plans = Counter((session.plan.num_steps, session.plan.num_draft_tokens) for session in step.sessions)
    return StepTaken(
        phase=median_low(source.phase_of(session.session, scenario) for session in step.sessions),
        seconds=seconds,
        committed=sum(session.committed for session in step.sessions),
        sessions=len(step.sessions),
        drafted=sum(session.drafted for session in step.sessions),
        plan=plans.most_common(1)[0][0],
    )

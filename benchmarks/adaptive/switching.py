"""What it costs to switch plans: a run in which an operator does nothing else, against runs that keep one or the other plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.adaptive.bench import Bench
from benchmarks.adaptive.contenders import Contender
from benchmarks.adaptive.run import Run, StepTaken
from benchmarks.lab.laboratory import Laboratory
from specsplit.membership import PlanOrder

NEAR = 5
"""Steps before and after a switch that are looked at."""


@dataclass(frozen=True)
class Switching:
    """Runs with one plan, with the other, and with either in turn."""

    names: Sequence[str]
    kept: Sequence[Run]
    both: Run

    @property
    def expected(self) -> float:
        """Committed tokens per second if a switch cost nothing: as long under the one plan as under the other."""
        return fmean(run.rate() for run in self.kept)


def switching(bench: Bench, one: Contender, other: Contender, every_s: float) -> Switching:
    """Run one plan, the other, and both in turn, for so many seconds each."""
    kept = [bench.run(contender) for contender in (one, other)]
    longest_s = max(sum(step.seconds for step in run.steps) for run in kept)

    def prepare(laboratory: Laboratory) -> None:
        for number in range(int(longest_s / every_s) + 1):
            plan = PlanOrder((one, other)[number % 2].plan)
            laboratory.timeline.at(number * every_s, lambda plan=plan: laboratory.verifiers[0].post(plan))

    return Switching((one.name, other.name), kept, bench.run(Contender("both in turn"), prepare))


def around(run: Run) -> tuple[list[StepTaken], list[StepTaken]]:
    """The steps just before switches, and those just after."""
    steps, switches = run.steps, run.switches
    before = [step for at in switches for step in steps[max(0, at - NEAR) : at]]
    return before, [step for at in switches for step in steps[at : at + NEAR]]

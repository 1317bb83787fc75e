"""All contenders in one batch: each begins with the same calibrations, which an earlier run has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from benchmarks.adaptive.contenders import Contender
from benchmarks.adaptive.phases import PhasedSource
from benchmarks.adaptive.run import Run, run_of
from benchmarks.lab.arrivals import Closed
from benchmarks.lab.cost import HEAD_8B_H100, STEP_8B_H100
from benchmarks.lab.hindsight import exact
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.scenario import DrafterSpec, Scenario
from specsplit_drafter.drafts.calibration import Calibrations


@dataclass(frozen=True)
class Size:
    """How many callers there are, and how much they ask."""

    callers: int
    requests: int
    """Requests of every phase."""


class Bench:
    """An 8B model on one H100 with its head, as far as their costs go, and so many callers."""

    def __init__(self, source: PhasedSource, size: Size) -> None:
        self._source = source
        self.scenario = Scenario(
            f"batch {size.callers}",
            drafters=(DrafterSpec(cost=HEAD_8B_H100),),
            step=STEP_8B_H100,
            arrivals=Closed(size.callers),
            requests=size.requests * len(source.phases),
        )
        self._known = self._calibrations()
        self._runs: dict[str, Run] = {}
        """Runs by the contender's name: two runs of one contender are the same."""

    def run(self, contender: Contender, prepare: Callable[[Laboratory], None] | None = None) -> Run:
        """Run a contender; `prepare` may arrange for something to happen meanwhile."""
        if prepare is not None:
            return self._run(contender, prepare)
        if contender.name not in self._runs:
            self._runs[contender.name] = self._run(contender)
        return self._runs[contender.name]

    def _run(self, contender: Contender, prepare: Callable[[Laboratory], None] | None = None) -> Run:
        scenario = replace(self.scenario, policy=contender.policy, plan=contender.plan, waits=contender.waits)
        source, known = (
            (self._source.in_hindsight, [exact()]) if contender.hindsight else (self._source, deepcopy(self._known))
        )
        laboratory = Laboratory(scenario, source, known)
        if prepare is not None:
            prepare(laboratory)
        return run_of(laboratory.run(), self._source, scenario)

    def _calibrations(self) -> list[Calibrations]:
        laboratory = Laboratory(self.scenario, self._source)
        laboratory.run()
        return [drafter.table.calibrations for drafter in laboratory.drafters]


@dataclass(frozen=True)
class Outcome:
    """The runs of all contenders in one batch, by name."""

    callers: int
    runs: Mapping[str, Run]
    static: Sequence[str]

    def best(self, phase: int | None = None) -> str:
        """The static plan that was best in a phase, or in the whole run."""
        return max(self.static, key=lambda name: self.runs[name].rate(phase))

    def regret(self, name: str, phase: int) -> float:
        """What a contender is short of the best static plan of a phase, as a share of it; negative if it is better."""
        return 1 - self.runs[name].rate(phase) / self.runs[self.best(phase)].rate(phase)

    def gain(self, name: str) -> float:
        """What a contender makes in the whole run beyond the best static plan, as a share of it."""
        return self.runs[name].rate() / self.runs[self.best()].rate() - 1

    def closed(self, name: str, oracle: str) -> float | None:
        """The share of the way from the best static plan to an oracle; None if that is no better."""
        gap = self.gain(oracle)
        return self.gain(name) / gap if gap > 0 else None

"""What sets the pace of an engine: what it has to do itself, or the turns of its rank group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from specsplit.ranks.rank import Rank
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.policy.planner import Pause
from specsplit_verifier.records.step import StepInput, StepOutput, StepResult


class Pacer(Protocol):
    """Says what the engine thread does next."""

    def choose(self) -> StepInput | Pause:
        """The step to run now, or how long to wait before asking again."""
        ...

    def commit(
        self, step: StepInput, output: StepOutput, watched: Collection[int]
    ) -> tuple[StepResult | None, Pause | None]:
        """Commit a step that was run -> what came of it (None: nobody had rows), and for how long to wait behind it (None: not at all)."""
        ...


class Alone:
    """Steps whenever there is something to step."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def choose(self) -> StepInput | Pause:
        """See `Pacer`."""
        return self._core.schedule()

    def commit(
        self, step: StepInput, output: StepOutput, watched: Collection[int]
    ) -> tuple[StepResult | None, Pause | None]:
        """See `Pacer`."""
        return self._core.commit(step, output, watched), None


class InTurns:
    """Steps with the other ranks of a group: a turn is run if any of them has rows, or else all rest. A parked group takes no turns."""

    def __init__(self, core: EngineCore, rank: Rank) -> None:
        self._core = core
        self._rank = rank

    def choose(self) -> StepInput | Pause:
        """See `Pacer`. A turn that brings no rows is a step too."""
        if self._rank.parked:
            self._rank.rests(unfinished=self._core.unfinished > 0)
            return Pause(None)
        return self._core.propose(self._core.schedule())

    def commit(
        self, step: StepInput, output: StepOutput, watched: Collection[int]
    ) -> tuple[StepResult | None, Pause | None]:
        """See `Pacer`. The ranks agreed on the turn, and ran it, in one call of the target: nothing that may fail came between."""
        ended = self._rank.end_turn(output.started)
        assert ended is not None, "a rank of a group runs nothing before it has agreed"
        agreed, costs = ended
        self._core.stopwatch.waited(costs.waited_s)
        result = None
        if step.rows:
            result = self._core.commit(step, output, watched, costs)
        elif agreed.runs:
            result = self._core.commit_idle(step, output, costs)
        self._core.agree(agreed)
        return result, None if agreed.runs else Pause(agreed.rest_s)

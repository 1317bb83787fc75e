"""What became of every request of a run, and of every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.errors import SpecsplitError
from specsplit.sessions import DecodeRequest, Finished, Preempted
from specsplit_verifier.records.events import Output
from specsplit_verifier.records.step import StepResult


@dataclass
class Entry:
    """One request. Times are seconds of the clock."""

    request: DecodeRequest
    came: float
    tokens: list[int] = field(default_factory=list[int])
    """Tokens behind the prompt."""
    first_at: float = 0.0
    ended_at: float | None = None

    def take(self, output: Output, now: float) -> bool:
        """Note what its caller gets; True if that is the end. Raises what the session ended with, if it failed."""
        if isinstance(output, SpecsplitError):
            raise output
        if isinstance(output, Finished):
            self.ended_at = now
            return True
        if isinstance(output, Preempted):
            return False
        self.first_at = self.first_at if self.tokens else now
        self.tokens += output.tokens
        return False


class Ledger:
    """All requests in order of arrival, and all steps in order of time."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.steps: list[StepResult] = []

    @property
    def stepped(self) -> list[StepResult]:
        """Steps that a session brought a tree to; prompts are read in the others."""
        return [step for step in self.steps if step.sessions]

    @property
    def busy_s(self) -> float:
        """Time in which there was a request."""
        return covered_s([(entry.came, entry.ended_at or entry.came) for entry in self.entries])


def covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """The length of what these (from, to) cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered

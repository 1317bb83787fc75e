"""The `goodput` controller: the plan that commits the most tokens per second, by acceptance and cost as measured."""

from __future__ import annotations

from specsplit.values import Estimate, Plan
from specsplit_verifier.step import StepResult

FORGETTING = 0.95


class GoodputController:
    """The Controller that goes by committed tokens per second."""

    def __init__(self, max_draft_tokens: int) -> None:
        """`max_draft_tokens`: of a session in one step at most."""
        self.max_draft_tokens = max_draft_tokens
        self._weight, self._length, self._seconds, self._committed = 0.0, 0.0, 0.0, 0.0

    def plan(self, launched: Plan, sessions: int) -> Plan:
        """The launched plan, for now."""
        return launched

    def observe(self, result: StepResult) -> None:
        """Steps fade, by 0.95 each."""
        if not result.sessions:
            return
        mean = sum(part.accepted + 1 for part in result.sessions) / len(result.sessions)
        self._weight = FORGETTING * self._weight + 1
        self._length = FORGETTING * self._length + mean
        self._seconds = FORGETTING * self._seconds + result.costs.forward_us * 1e-6
        self._committed = FORGETTING * self._committed + result.committed

    def estimate(self) -> Estimate | None:
        """Of what was seen lately."""
        if not self._seconds:
            return None
        rate = self._committed / self._seconds
        return Estimate(self._length / self._weight, self._seconds / self._weight, 0.0, rate, rate)

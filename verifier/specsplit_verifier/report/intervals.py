"""The time between the steps that bring a session tokens, as vLLM measures its inter-token latency."""

from __future__ import annotations

from specsplit.observe.instruments import Histogram
from specsplit_verifier.records.step import StepResult


class Intervals:
    """Fills a histogram with the seconds from one step of a session to its next, however many tokens came of it."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._latest: dict[int, float | None] = {}
        """By session, when its latest step ended; None before the first."""

    def began(self, session: int) -> None:
        """From now on count a session's steps."""
        self._latest[session] = None

    def step(self, result: StepResult) -> None:
        """Take in a step that is over."""
        for session in result.sessions:
            if session.session not in self._latest:
                continue  # it was cancelled while the step ran
            before = self._latest[session.session]
            self._latest[session.session] = result.ended
            if before is not None:
                self._histogram.observe(result.ended - before)

    def ended(self, session: int) -> None:
        """Forget a session that is over."""
        del self._latest[session]

"""Where the time of a run goes: what a verifier tells of its steps in /metrics, and what calls of a model's forward take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import nn

from benchmarks.scrape import Sums, fetched, place_of, summed


@dataclass(frozen=True, slots=True)
class Account(Sums):
    """Calls of the target's forward, and seconds."""

    calls: float = 0.0
    forward_s: float = 0.0
    """Seconds in the target's forward."""
    drafting_s: float = 0.0
    """In the draft model's forward, or waiting for a drafter in another process."""
    host_s: float = 0.0
    """What else the engine did. 0 where that is not known."""


SUMS = {
    "specsplit_steps_total": "calls",
    "specsplit_verify_time_seconds_sum": "forward_s",
    "specsplit_wait_time_seconds_sum": "drafting_s",
    "specsplit_host_time_seconds_sum": "host_s",
}


def accounted(metrics: str) -> Account:
    """Sums since start, of what a verifier's /metrics say. Raises KeyError if one of them is missing."""
    return summed(Account, SUMS, metrics)


class VerifierAccount:
    """The account of a verifier, which says in its output where its metrics are."""

    def __init__(self) -> None:
        self._url = ""

    def hear(self, name: str, line: str) -> None:
        """A line of a child's output."""
        if name.startswith("verifier"):
            self._url = place_of(line) or self._url

    def read(self) -> Account:
        """Sums since it started."""
        return accounted(fetched(self._url, timeout_s=5))


class ForwardClock:
    """Counts the calls of a model's forward, and the seconds that they take."""

    def __init__(self, model: nn.Module) -> None:
        self.calls = 0
        self.seconds = 0.0
        forward = model.forward

        @wraps(forward)  # transformers looks at the signature
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return forward(*args, **kwargs)
            finally:
                self.calls += 1
                self.seconds += time.perf_counter() - started

        model.forward = timed

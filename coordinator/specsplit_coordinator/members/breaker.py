"""A circuit breaker for one verifier (M. Nygard, "Release It!", 2007): one that fails at once looks idle, and would draw every request.

    closed ── a session fails ──> open ── the cool-down is over ──> half open ── a session's first event ──> closed
                                    ^                                  │
                                    └──────── a session fails ─────────┘

Half open, the verifier is tried with one session at a time. Each failure in a row doubles the cool-down.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from specsplit.clock import Clock

FIRST_COOL_DOWN_S = 0.5
LAST_COOL_DOWN_S = 30.0
_MOST_DOUBLINGS = 16  # more than the longest cool-down needs, and well within what a float can hold


class Breaker:
    """The breaker of one verifier: how the sessions placed on it have fared. Pure: the time is that of the clock it is given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failures = 0
        """Failures in a row."""
        self._until = self._failed_at = -math.inf
        self._trial = False
        self.on_change: Callable[[], object] = lambda: None
        """Called when `failures` has changed."""

    @property
    def cool_down_s(self) -> float:
        """Seconds until the verifier is tried again; 0 unless the breaker is open."""
        return max(0.0, self._until - self._clock.now())

    @property
    def failed_s(self) -> float:
        """Seconds since a session failed; infinite if one has got its first event since."""
        return self._clock.now() - self._failed_at

    @property
    def admits(self) -> bool:
        """False while the verifier cools down, or is tried with one session: others are preferred then."""
        return self.cool_down_s == 0.0 and not self._trial

    def begin(self) -> bool:
        """Note that a session is placed on the verifier -> whether it is a trial; then `end_trial` has to be called when it is over."""
        trial = self.failures > 0 and not self._trial
        self._trial |= trial
        return trial

    def end_trial(self) -> None:
        """Note that the trial session is over, or has got its first event."""
        self._trial = False

    def failed(self) -> None:
        """Note that a session failed. Failures during the cool-down belong to the one that opened the breaker, and do not count."""
        self._failed_at = self._clock.now()
        if self.cool_down_s:
            return
        self.failures += 1
        self.on_change()
        doublings = min(self.failures - 1, _MOST_DOUBLINGS)
        self._until = self._clock.now() + min(FIRST_COOL_DOWN_S * 2**doublings, LAST_COOL_DOWN_S)

    def succeeded(self) -> None:
        """Note that a session got its first event, so that the verifier is well."""
        had_failed, self.failures, self._until, self._failed_at = self.failures > 0, 0, -math.inf, -math.inf
        if had_failed:
            self.on_change()

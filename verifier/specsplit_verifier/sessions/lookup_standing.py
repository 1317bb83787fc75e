"""Whether lookup beside a drafter works or rests: by the tokens that are committed thanks to it, and those that its time would have made.

A step of s seconds that commits n tokens, g of them only thanks to what was looked up in t seconds, is better than one without lookup
exactly if n / s is more than (n - g) / (s - t), which is if g is more than t * n / s.
"""

from __future__ import annotations

import math
from typing import Final

from specsplit.clock import Clock
from specsplit_verifier.sessions.rests import PROBE, Rests

FADING: Final = 0.98
"""Weight that a step has left after the next one."""
LEAST: Final = 2.0 * PROBE
"""Weight of the steps by which it is judged outside a probe, at least."""
SMOOTHING: Final = 0.05


class LookupPrice:
    """What a lookup beside a drafter takes, in tokens. One for all of a verifier."""

    def __init__(self, clock: Clock) -> None:
        self.now: Final = clock.now
        self.rate = 0.0
        """Tokens that are committed per second lately, all sessions of a step together; 0: unknown."""
        self._log_s: float | None = None

    def took(self, seconds: float) -> None:
        """Learn what looking up took for one session in one step. Their geometric mean counts, which an interrupted thread hardly moves."""
        found = math.log(max(seconds, 1e-9))
        self._log_s = found if self._log_s is None else self._log_s + SMOOTHING * (found - self._log_s)

    @property
    def tokens(self) -> float:
        """Tokens that are committed in the time of a lookup; 0: unknown."""
        return 0.0 if self._log_s is None else math.exp(self._log_s) * self.rate


class LookupStanding:
    """What lookup brings beside one drafter in texts of one kind, whatever the session, and whether it rests."""

    def __init__(self) -> None:
        self._rests = Rests()
        self._steps = self._gained = self._squares = 0.0

    @property
    def resting(self) -> bool:
        """True if nothing is to be looked up for the next step of a session."""
        return self._rests.resting

    def rested(self) -> None:
        """A session has made a step for which nothing was looked up. When the rest is over older steps count as one probe."""
        if not self._rests.resting:  # it ended with a step of another session
            return
        self._rests.step()
        if not self._rests.resting:
            self._fade(min(1.0, PROBE / self._steps))

    def stepped(self, gained: int, price: float) -> None:
        """A session has committed so many tokens more thanks to lookup, which took as long as `price` tokens do."""
        self._fade(FADING)
        self._steps += 1.0
        self._gained += gained
        self._squares += gained * gained
        if self._rests.resting:  # it began with a step of another session
            return
        judged = self._rests.step() if self._rests.probing else self._steps >= LEAST
        if judged and self._hopeful < price:
            self._rests.begin()
        elif judged and self._mean >= price:
            self._rests.end()

    def _fade(self, share: float) -> None:
        self._steps, self._gained, self._squares = share * self._steps, share * self._gained, share * self._squares

    @property
    def _mean(self) -> float:
        return self._gained / self._steps

    @property
    def _hopeful(self) -> float:
        """Tokens that a step gains, and one standard error more."""
        variance = max(0.0, self._squares / self._steps - self._mean**2)
        return self._mean + math.sqrt(variance / self._steps)

"""What a step costs, learnt from the steps themselves."""

from __future__ import annotations

FORGETTING = 0.98


class StepCost:
    """Seconds of a step as a + b * tokens, by least squares over recent steps (older ones fade by 0.98 each)."""

    def __init__(self, guess_s: float = 0.005) -> None:
        # Sums of weight, tokens, seconds, tokens^2 and tokens * seconds; the guess weighs as much as one observation.
        self._w, self._t, self._s, self._tt, self._ts = 1.0, 0.0, guess_s, 0.0, 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn that a step over `tokens` tokens took `seconds`."""
        keep = FORGETTING
        self._w = keep * self._w + 1
        self._t = keep * self._t + tokens
        self._s = keep * self._s + seconds
        self._tt = keep * self._tt + tokens * tokens
        self._ts = keep * self._ts + tokens * seconds

    @property
    def mean_s(self) -> float:
        """Weighted mean duration."""
        return self._s / self._w

    def predict(self, tokens: int) -> float:
        """Expected seconds of a step over `tokens` tokens; never less than a tenth of the mean."""
        variance = self._tt / self._w - (self._t / self._w) ** 2
        if variance < 1.0:
            return self.mean_s
        slope = max(0.0, (self._ts / self._w - self.mean_s * self._t / self._w) / variance)
        return max(self.mean_s + slope * (tokens - self._t / self._w), 0.1 * self.mean_s)

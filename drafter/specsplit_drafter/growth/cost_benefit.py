"""Cost and benefit of a node: the time that it saves the verifier if it is accepted, against the price of sending it.

A node of survival s saves the time of s tokens, and a token takes a step's time divided by the tokens that a step commits. Sending a node,
and applying it at the verifier, costs a price. So a node is sent, and may be expanded, if

    survival * step_s / accept_length > price        or        survival > floor = price * accept_length / step_s.

The least price is a setting. Where nodes come late, because the wire or the verifier cannot bear so many, it rises until they do not: the
likeliest are sent, and the others stay candidates.

Worked example: steps of 20 ms that commit 4 tokens each, and a price of 1 us: the floor is 1 * 4 / 20,000 = 0.0002.
"""

from __future__ import annotations

from typing import Final

from specsplit_drafter.growth.acknowledgements import Acknowledgements

SMOOTHING: Final = 0.1
DEFAULT_STEP_S: Final = 0.020
"""Step time of a verifier that does not say how long its steps take."""
LEAST_STEP_S: Final = 0.0005
MOST_STEP_S: Final = 1.0
"""Bounds of the step time that a verifier reports: sessions of several verifiers are weighed against one another by it."""
DEFAULT_ACCEPT_LENGTH: Final = 3.0
"""Accept length of a session that has not committed anything yet."""
MISS_RATE: Final = 0.2
"""Miss rate of such a session."""
LATE_SHARE: Final = 0.25
"""Share of a step's time: nodes that are later than this were sent faster than the verifier receives them."""
PRICE_RISE: Final = 1.5
PRICE_FALL: Final = 0.98
"""Factors of the price with every commit after which nodes were late, or were not."""
HIGHEST_FLOOR: Final = 0.5
LEAST_RETURN: Final = 0.01
"""Share of its own time that an expansion has to save at least."""


class CostBenefit:
    """Cost and benefit of the nodes of one session."""

    def __init__(self, price_s: float, step_us: int = 0) -> None:
        self.acknowledgements = Acknowledgements()
        self._least_price_s = self._price_s = price_s
        self.step_s = DEFAULT_STEP_S
        """Time from one step of the verifier to the next."""
        self._accept_length = DEFAULT_ACCEPT_LENGTH
        self._miss_rate = MISS_RATE
        self.set_step_time(step_us)

    @property
    def window_s(self) -> float:
        """Time from an event of the verifier to the last moment at which an answer still reaches its next step."""
        return max(0.0, self.step_s - self.acknowledgements.round_trip_s)

    @property
    def token_s(self) -> float:
        """Time of the verifier that one more accepted token saves."""
        return self.step_s / self._accept_length

    @property
    def floor(self) -> float:
        """Survival below which a node costs more than it saves."""
        return min(HIGHEST_FLOOR, self._price_s / self.token_s)

    def set_step_time(self, step_us: int) -> None:
        """Take in the step time that the verifier reports, within bounds; 0: it reports none."""
        if step_us:
            self.step_s = min(max(step_us / 1e6, LEAST_STEP_S), MOST_STEP_S)

    def acknowledge(self, node_id: int, now: float) -> None:
        """Take in the highest id that the verifier had received when it made a commit. The price rises if nodes are late, else it falls."""
        late_s = self.acknowledgements.acknowledge(node_id, now)
        factor = PRICE_RISE if late_s > LATE_SHARE * self.step_s else PRICE_FALL
        self._price_s = min(max(self._price_s * factor, self._least_price_s), HIGHEST_FLOOR * self.token_s)

    def observe_commit(self, tokens: int, *, hit: bool) -> None:
        """Learn from a commit."""
        self._accept_length += SMOOTHING * (tokens - self._accept_length)
        self._miss_rate += SMOOTHING * ((not hit) - self._miss_rate)

    def pays(self, saved_s: float, expansion_s: float) -> bool:
        """Tell whether an expansion of `expansion_s` pays if it saves the verifier `saved_s`.

        The answer to a commit that comes meanwhile is late by half of the expansion in the mean, and the verifier loses that time after a
        miss.
        """
        lost = self._miss_rate * min(1.0, expansion_s / self.step_s) / 2
        return saved_s >= max(LEAST_RETURN, lost) * expansion_s

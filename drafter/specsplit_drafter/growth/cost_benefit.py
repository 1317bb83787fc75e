"""Cost and benefit of a node: the time that it saves the verifier if it is accepted, against the price of sending it.

A node of survival s saves the time of s tokens, and a token takes a step's time divided by the tokens that a step commits. Sending a node,
and applying it at the verifier, costs a price. So a node is sent, and may be expanded, if

    survival * step_s / accept_length > price        or        survival > floor = price * accept_length / step_s.

The least price is a setting. Where nodes come late, because the wire or the verifier cannot bear so many, it rises until they do not: the
likeliest are sent, and the others stay candidates.

Worked example: steps of 20 ms that commit 4 tokens each, and a price of 1 us: the floor is 1 * 4 / 20,000 = 0.0002.

An expansion takes time too. On cores of the drafter's own that costs little, and it is made unless it saves next to nothing. On cores that
are the verifier's as well it takes a share c of its time from the verifier (`contention`), and it pays under two conditions more. What it
saves, in uses that are to be expected by what became of others, is at least what it takes:

    ratio * saved > c * expansion_s                                       (ratio: usage.py)

And it does not do better to wait. A node that is expanded behind the commit that makes it the root is used for certain, and the verifier
goes without its children for an expansion's time. One that is expanded ahead, with u uses to be expected, spares that time in u of the
cases, and takes c of it for nothing in the others. So u > (1 - u) * c, which is

    ratio * survivals > c / (1 + c).

Others compute on these cores too, and what is wasted is theirs. So while less than 0.7 of the expansions of late were used, u is one half
at least.

Worked example: a verifier computes on two cores, and its drafter on one of them: c = 1/2. Steps take 20 ms and commit 4 tokens, so a token
saves 5 ms. An expansion of 2 ms takes 1 ms from the verifier, so it saves what it takes with 0.2 uses; since waiting does better up to a
third, it is made from there on. On cores of its own it pays from 0.004 on.
"""

from __future__ import annotations

from typing import Final

from specsplit_drafter.growth.acknowledgements import Acknowledgements
from specsplit_drafter.growth.usage import Usage

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
RATHER_USED: Final = 0.5
"""Uses that are to be expected of an expansion on shared cores while many are wasted."""


class CostBenefit:
    """Cost and benefit of the nodes of one session."""

    def __init__(self, price_s: float, step_us: int = 0, contention: float = 0.0, usage: Usage | None = None) -> None:
        """`contention`: share of an expansion's time that it takes from the verifier. `usage`: of the drafter; None: a new one."""
        self.usage = usage or Usage()
        self._contention = contention
        self.acknowledgements = Acknowledgements()
        self._least_price_s = self._price_s = price_s
        self.step_s = DEFAULT_STEP_S
        """Time from one step of the verifier to the next."""
        self._accept_length = DEFAULT_ACCEPT_LENGTH
        self._miss_rate = MISS_RATE
        self.told_floor = 0.0
        """Survival below which the verifier's last step had no use for a node."""
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

    @property
    def step_floor(self) -> float:
        """Survival below which a node costs more than it saves, or is of no use to the verifier's very next step."""
        return max(self.floor, min(HIGHEST_FLOOR, self.told_floor))

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
        return saved_s >= max(LEAST_RETURN, lost) * expansion_s and self._pays_verifier(saved_s, expansion_s)

    def _pays_verifier(self, saved_s: float, expansion_s: float) -> bool:
        """Tell whether what is saved, by what is used of it, is worth the time that an expansion takes from the verifier."""
        share, saved_s = self._contention, self.usage.ratio * saved_s
        if not share:
            return True
        least_uses = max(share / (1 + share), RATHER_USED if self.usage.wasteful else 0.0)
        return saved_s >= max(share * expansion_s, least_uses * self.token_s)

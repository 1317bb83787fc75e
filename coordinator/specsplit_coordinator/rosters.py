"""The drafters that each verifier may use, best first, as its directives have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specsplit.membership import Roster
from specsplit_coordinator.balance import TEXTS, Balance
from specsplit_coordinator.registry import Registry
from specsplit_coordinator.seat import KIND_ORDER, Seat, endpoint_of, kind_of

MARGIN = 0.1
"""Two drafters change places only if that gains more than this share of the score."""


class Rosters:
    """Orders drafters by score, for such text as the verifier has written lately, and remembers the order, so that what is about equal does
    not change places all the time.
    """

    def __init__(self, registry: Registry, balance: Balance) -> None:
        self._registry = registry
        self._balance = balance
        self._orders: dict[str, Sequence[str]] = {}
        """The order of drafters by member id, as it was last, by verifier."""
        registry.on_gone.append(self._forget)

    def _forget(self, gone: Seat) -> None:
        self._orders.pop(gone.member_id, None)

    def of(self, verifier: Seat) -> Roster:
        """The drafters that `verifier` may use now, best first; what is equal stands in order of kind, then of joining."""
        usable = sorted(self._registry.usable_drafters, key=lambda seat: KIND_ORDER.index(kind_of(seat)))
        mix = _mix(verifier)
        scores = {seat.member_id: self._score(verifier, seat, mix) for seat in usable}
        order = self._orders[verifier.member_id] = reordered(self._orders.get(verifier.member_id, ()), scores, MARGIN)
        seats = {seat.member_id: seat for seat in usable}
        return Roster(tuple(endpoint_of(seats[name]) for name in order))

    def _score(self, verifier: Seat, drafter: Seat, mix: Mapping[bool, float]) -> float:
        return sum(share * self._balance.score(verifier, drafter, sampled=sampled) for sampled, share in mix.items())


def _mix(verifier: Seat) -> Mapping[bool, float]:
    """Which shares of the verifier's steps lately were greedy and sampled; greedy, if it has said nothing."""
    told = () if verifier.speculation is None else verifier.speculation.drafters
    steps = {text: sum(each.steps for each in told if each.sampled is text) for text in TEXTS}
    return {text: count / sum(steps.values()) for text, count in steps.items() if count} or {False: 1.0}


def reordered(before: Sequence[str], scores: Mapping[str, float], margin: float) -> Sequence[str]:
    """The names in `scores`, best first; two that were there before change places only if that gains more than `margin` of the score."""
    order = [name for name in before if name in scores]
    for name in scores:
        if name not in order:
            order.insert(next((i for i, other in enumerate(order) if scores[other] < scores[name]), len(order)), name)
    for i in range(1, len(order)):
        while i > 0 and scores[order[i]] > (1 + margin) * scores[order[i - 1]]:
            order[i - 1], order[i] = order[i], order[i - 1]
            i -= 1  # noqa: PLW2901 (it follows the one that moves ahead)
    return order

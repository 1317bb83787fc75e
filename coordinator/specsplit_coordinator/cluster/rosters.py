"""The drafters that each verifier may use, best first, as its directives have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from specsplit.membership import Roster
from specsplit_coordinator.cluster.balance import TEXTS, Balance
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState, endpoint_of, kind_of
from specsplit_coordinator.members.registry import Registry

MARGIN = 0.1
"""Two drafters change places only if that gains more than this share of the score."""


class _Drawn(NamedTuple):
    """A roster, and what it was drawn by: the drafters by name, an edition of what is known of them, and the verifier's step time."""

    roster: Roster
    order: tuple[str, ...]
    drafters: Mapping[str, MemberState]
    edition: int
    step_ms: float


class Rosters:
    """Orders drafters by score, for such text as the verifier has written lately, and remembers the order, so that what is about equal does
    not change places all the time. A roster is drawn again only if something has changed by which it was drawn.
    """

    def __init__(self, registry: Registry, balance: Balance) -> None:
        self._registry = registry
        self._balance = balance
        self._edition = 0
        self._seen = (-1, -1)
        """Changes of the registry, and edition of the balance, that this edition knows."""
        self._usable: Mapping[str, MemberState] = {}
        """The drafters that may be used, in order of kind, then of joining."""
        self._standing = set[MemberState]()
        """The drafters that stand in any roster."""
        self._untried: dict[tuple[object, ...], Mapping[str, float]] = {}
        """The scores of this edition for verifiers that report of no drafter, by step time and kinds of text."""
        self._rosters: dict[tuple[str, ...], Roster] = {}
        """The rosters of this edition, by order: many verifiers have the same."""
        self._drawn: dict[str, _Drawn] = {}
        """The last roster of every verifier."""
        self._subscribers: dict[MemberState, Callable[[], None]] = {}
        registry.on_gone.append(self._forget)

    def _forget(self, gone: MemberState) -> None:
        self._drawn.pop(gone.member_id, None)

    def subscribe(self, verifier: MemberState, callback: Callable[[], None]) -> Callable[[], object]:
        """Call `callback` whenever there is news for the verifier, until the function that is returned is called."""
        self._subscribers[verifier] = callback
        return partial(self._subscribers.pop, verifier, None)

    def draw(self) -> Iterator[None]:
        """Draw again what may have changed, one verifier with every step.

        Subscribers of a roster that has changed are called, and those of a verifier that is to hand a session over.
        """
        self.strike()
        for verifier in self._registry.verifiers:
            if not verifier.absent:  # it may have gone since the first step
                self._draw(verifier)
            yield

    def _draw(self, verifier: MemberState) -> None:
        before = self._drawn.get(verifier.member_id)
        if before is None or self.of(verifier) != before.roster or verifier.hand_overs:
            self._tell(verifier)

    def strike(self) -> None:
        """Take the drafters that may no longer be used out of every roster, and call the subscribers of those rosters.

        Nothing is scored for that: what the others are worth has not changed.
        """
        usable = {*self._registry.usable_drafters}
        if self._standing <= usable:
            return
        self._standing &= usable
        self._usable = {name: drafter for name, drafter in self._usable.items() if drafter in usable}
        self._untried.clear()
        self._rosters.clear()
        for verifier in self._registry.known_verifiers:
            if (drawn := self._drawn.get(verifier.member_id)) is not None:
                self._strike(verifier, drawn, usable)

    def _strike(self, verifier: MemberState, drawn: _Drawn, usable: Collection[MemberState]) -> None:
        order = tuple(name for name in drawn.order if drawn.drafters[name] in usable)
        if len(order) < len(drawn.order):
            self._drawn[verifier.member_id] = drawn._replace(roster=self._roster(order, drawn.drafters), order=order)
            self._tell(verifier)

    def _tell(self, verifier: MemberState) -> None:
        if (callback := self._subscribers.get(verifier)) is not None:
            callback()

    def told(self, verifier: MemberState) -> Roster:
        """The roster that was drawn last for `verifier`; drawn now for one that has none yet."""
        drawn = self._drawn.get(verifier.member_id)
        return self.of(verifier) if drawn is None else drawn.roster

    def of(self, verifier: MemberState) -> Roster:
        """The drafters that `verifier` may use now, best first; what is equal stands in order of kind, then of joining."""
        self._look()
        drawn, step_ms = self._drawn.get(verifier.member_id), verifier.load.step_ms
        if drawn is None or (drawn.edition, drawn.step_ms) != (self._edition, step_ms):
            order = tuple(reordered(drawn.order if drawn else (), self._scores(verifier), MARGIN))
            drawn = self._drawn[verifier.member_id] = _Drawn(
                self._roster(order, self._usable), order, self._usable, self._edition, step_ms
            )
        return drawn.roster

    def _look(self) -> None:
        """Begin an edition if drafters have come or gone, or there are new sums."""
        self._balance.pool()
        seen = self._registry.changes, self._balance.edition
        if seen == self._seen:
            return
        usable = sorted(self._registry.usable_drafters, key=lambda drafter: KIND_ORDER.index(kind_of(drafter)))
        if seen[1] != self._seen[1] or usable != [*self._usable.values()]:
            self._usable = {drafter.member_id: drafter for drafter in usable}
            self._standing.update(usable)
            self._edition += 1
            self._untried.clear()
            self._rosters.clear()
        self._seen = seen

    def _roster(self, order: tuple[str, ...], members: Mapping[str, MemberState]) -> Roster:
        if order not in self._rosters:
            self._rosters[order] = Roster(tuple(endpoint_of(members[name]) for name in order))
        return self._rosters[order]

    def _scores(self, verifier: MemberState) -> Mapping[str, float]:
        mix = _mix(verifier)
        if self._balance.reports_on(verifier):
            return self._scored(verifier, mix)
        key = verifier.load.step_ms, *mix.items()
        if key not in self._untried:
            self._untried[key] = self._scored(verifier, mix)
        return self._untried[key]

    def _scored(self, verifier: MemberState, mix: Mapping[bool, float]) -> Mapping[str, float]:
        score = self._balance.score
        return {
            name: sum(share * score(verifier, drafter, sampled=sampled) for sampled, share in mix.items())
            for name, drafter in self._usable.items()
        }


def _mix(verifier: MemberState) -> Mapping[bool, float]:
    """Which shares of the verifier's steps lately were greedy and sampled; greedy, if it has said nothing."""
    told = () if verifier.speculation is None else verifier.speculation.drafters
    steps = {text: sum(each.steps for each in told if each.sampled is text) for text in TEXTS}
    return {text: count / sum(steps.values()) for text, count in steps.items() if count} or {False: 1.0}


def reordered(before: Sequence[str], scores: Mapping[str, float], margin: float) -> Sequence[str]:
    """The names in `scores`, best first; two that were there before change places only if that gains more than `margin` of the score."""
    order, known = [name for name in before if name in scores], frozenset(before)
    if not order:
        return sorted(scores, key=lambda name: -scores[name])
    for name in scores:
        if name not in known:
            order.insert(next((i for i, other in enumerate(order) if scores[other] < scores[name]), len(order)), name)
    for i in range(1, len(order)):
        while i > 0 and scores[order[i]] > (1 + margin) * scores[order[i - 1]]:
            order[i - 1], order[i] = order[i], order[i - 1]
            i -= 1  # noqa: PLW2901 (it follows the one that moves ahead)
    return order

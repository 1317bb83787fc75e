"""The roster of each verifier: the drafters that it may use, best first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from specsplit.membership import Roster
from specsplit_coordinator.cluster.drafter_scorer import TEXTS, DrafterScorer
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState, endpoint_of, kind_of
from specsplit_coordinator.members.registry import Registry

MARGIN = 0.1
"""Two drafters in a roster swap only if the better score is higher by more than this share."""


class _Ranking(NamedTuple):
    """A roster, and what it was computed from: the drafters by name, the version of their scores, and the step time of the verifier."""

    roster: Roster
    order: tuple[str, ...]
    drafters: Mapping[str, MemberState]
    version: int
    step_ms: float


class Rosters:
    """Orders drafters by score, for such text as the verifier has written lately. The order is remembered, so that drafters with about the
    same score do not swap all the time. A roster is computed again only if something that it depends on has changed.
    """

    def __init__(self, registry: Registry, scorer: DrafterScorer) -> None:
        self._registry = registry
        self._scorer = scorer
        self._version = 0
        """Counts the changes of what all rosters depend on."""
        self._seen = (-1, -1)
        """The changes of the registry, and the version of the scorer, that this version is of."""
        self._usable: Mapping[str, MemberState] = {}
        """The drafters that may be used, by member id, in order of kind, then of joining."""
        self._weights: Mapping[str, int] = {}
        """The version of the weights of each, by member id."""
        self._listed = set[MemberState]()
        """The drafters that are in any roster."""
        self._unreported: dict[tuple[object, ...], Mapping[str, float]] = {}
        """Scores of this version for verifiers that have reported nothing of drafters, by step time and mix of text."""
        self._rosters: dict[tuple[str, ...], Roster] = {}
        """Rosters of this version, by the order of their drafters: many verifiers have the same."""
        self._rankings: dict[str, _Ranking] = {}
        """The latest ranking of every verifier, by member id."""
        self._subscribers: dict[MemberState, Callable[[], None]] = {}
        registry.on_gone.append(self._forget)

    def _forget(self, gone: MemberState) -> None:
        self._rankings.pop(gone.member_id, None)

    def subscribe(self, verifier: MemberState, callback: Callable[[], None]) -> Callable[[], object]:
        """Call `callback` whenever there is news for the verifier, until the function that is returned is called."""
        self._subscribers[verifier] = callback
        return partial(self._subscribers.pop, verifier, None)

    def update(self) -> Iterator[None]:
        """Compute every roster that may have changed; yield after each verifier.

        Subscribers of a roster that has changed are called, and those of a verifier that is to hand a session over.
        """
        self.remove_gone()
        for verifier in self._registry.verifiers:
            if not verifier.absent:  # it may have gone since the update began
                self._update(verifier)
            yield

    def _update(self, verifier: MemberState) -> None:
        before = self._rankings.get(verifier.member_id)
        if before is None or self.compute(verifier) != before.roster or verifier.hand_overs:
            self._notify(verifier)

    def remove_gone(self) -> None:
        """Remove drafters that may no longer be used from every roster, and call the subscribers of rosters that had them.

        Nothing is scored for that: the scores of the other drafters have not changed.
        """
        usable = {*self._registry.usable_drafters}
        if self._listed <= usable:
            return
        self._listed &= usable
        self._usable = {name: drafter for name, drafter in self._usable.items() if drafter in usable}
        self._unreported.clear()
        self._rosters.clear()
        for verifier in self._registry.known_verifiers:
            if (ranking := self._rankings.get(verifier.member_id)) is not None:
                self._remove(verifier, ranking, usable)

    def _remove(self, verifier: MemberState, ranking: _Ranking, usable: Collection[MemberState]) -> None:
        order = tuple(name for name in ranking.order if ranking.drafters[name] in usable)
        if len(order) < len(ranking.order):
            self._rankings[verifier.member_id] = ranking._replace(
                roster=self._roster(order, ranking.drafters), order=order
            )
            self._notify(verifier)

    def _notify(self, verifier: MemberState) -> None:
        if (callback := self._subscribers.get(verifier)) is not None:
            callback()

    def latest(self, verifier: MemberState) -> Roster:
        """The roster that was computed last for `verifier`; if it has none yet, it is computed now."""
        ranking = self._rankings.get(verifier.member_id)
        return self.compute(verifier) if ranking is None else ranking.roster

    def compute(self, verifier: MemberState) -> Roster:
        """Order the drafters that `verifier` may use now by score; equal ones are in order of kind, then of joining."""
        self._refresh()
        ranking, step_ms = self._rankings.get(verifier.member_id), verifier.load.step_ms
        if ranking is None or (ranking.version, ranking.step_ms) != (self._version, step_ms):
            order = tuple(reordered(ranking.order if ranking else (), self._scores(verifier), MARGIN))
            ranking = self._rankings[verifier.member_id] = _Ranking(
                self._roster(order, self._usable), order, self._usable, self._version, step_ms
            )
        return ranking.roster

    def _refresh(self) -> None:
        """Count a version if drafters have come, gone or other weights, or scores have changed."""
        self._scorer.refresh()
        seen = self._registry.changes, self._scorer.version
        if seen == self._seen:
            return
        usable = sorted(self._registry.usable_drafters, key=lambda drafter: KIND_ORDER.index(kind_of(drafter)))
        updated = any(self._weights.get(drafter.member_id, 0) != drafter.weights_version for drafter in usable)
        if updated or seen[1] != self._seen[1] or usable != [*self._usable.values()]:
            self._weights = {drafter.member_id: drafter.weights_version for drafter in usable}
            self._usable = {drafter.member_id: drafter for drafter in usable}
            self._listed.update(usable)
            self._version += 1
            self._unreported.clear()
            self._rosters.clear()
        self._seen = seen

    def _roster(self, order: tuple[str, ...], members: Mapping[str, MemberState]) -> Roster:
        if order not in self._rosters:
            self._rosters[order] = Roster(tuple(endpoint_of(members[name]) for name in order))
        return self._rosters[order]

    def _scores(self, verifier: MemberState) -> Mapping[str, float]:
        mix = _mix(verifier)
        if self._scorer.reports_on(verifier):
            return self._scored(verifier, mix)
        key = verifier.load.step_ms, *mix.items()
        if key not in self._unreported:
            self._unreported[key] = self._scored(verifier, mix)
        return self._unreported[key]

    def _scored(self, verifier: MemberState, mix: Mapping[bool, float]) -> Mapping[str, float]:
        score = self._scorer.score
        return {
            name: sum(share * score(verifier, drafter, sampled=sampled) for sampled, share in mix.items())
            for name, drafter in self._usable.items()
        }


def _mix(verifier: MemberState) -> Mapping[bool, float]:
    """The shares of greedy and of sampled steps among the verifier's latest; all greedy if it has reported none."""
    reports = () if verifier.speculation is None else verifier.speculation.drafters
    steps = {text: sum(each.steps for each in reports if each.sampled is text) for text in TEXTS}
    return {text: count / sum(steps.values()) for text, count in steps.items() if count} or {False: 1.0}


def reordered(before: Sequence[str], scores: Mapping[str, float], margin: float) -> Sequence[str]:
    """Order the names in `scores`, best first; two that are in `before` swap only if the better score is higher by more than `margin`."""
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

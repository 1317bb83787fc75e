"""How much a session of a verifier would gain from a drafter: what it brought lately, how far away it is, how busy it is. Pure.

    score = (1 + accepted) * step_s / (step_s + held_s) * (1 - busy / 4)

`accepted` nodes a step, and `held_s` for which a step was held back, are what the verifier reports of the drafter lately, shrunk towards
what all verifiers report of it, that towards what is reported of its kind, and that towards a guess: each of them weighs as much as 50
steps. For whom little has been seen, and that it answers later than a step takes, fewer accepted nodes are expected, in proportion.
`busy` is the share of its places that are taken. So the score is tokens per second, relative to the target alone, and a full drafter
counts a quarter less than an idle one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from specsplit.values import DrafterKind, DrafterReport
from specsplit_coordinator.registry import Registry, Seat, kind_of

K = TypeVar("K")

GUESSES = {
    DrafterKind.EAGLE3: 2.0,
    DrafterKind.MULTI_LAYER_EAGLE: 1.8,
    DrafterKind.EAGLE: 1.6,
    DrafterKind.STANDALONE: 1.4,
    DrafterKind.NGRAM: 0.6,
}
"""Accepted nodes a step, before anything was seen. What matters is the order."""
GUESS_STEPS = 50.0
"""Session steps that a guess weighs as much as."""
MOST_STEPS = 1000.0
"""Session steps of one report that count, so that no verifier speaks for all."""
COST_OF_BUSY = 0.25
"""What a drafter loses from idle to full."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What a drafter brings in one session step, and on how many that rests."""

    steps: float
    accepted: float
    held_s: float = 0.0

    @classmethod
    def of(cls, reports: Iterable[DrafterReport]) -> Brought:
        """The mean over these, by their steps."""
        told = [each for each in reports if each.steps > 0]
        steps = sum(each.steps for each in told)
        if not steps:
            return cls(0.0, 0.0)
        accepted = sum(each.steps * each.accepted for each in told) / steps
        return cls(steps, accepted, sum(each.steps * each.held_s for each in told) / steps)

    def shrunk(self, guess: Brought) -> Brought:
        """The same, towards a guess: the less it rests on, the more."""
        weight = self.steps / (self.steps + GUESS_STEPS)
        accepted = weight * self.accepted + (1 - weight) * guess.accepted
        return Brought(self.steps, accepted, weight * self.held_s + (1 - weight) * guess.held_s)

    def beside(self, before: Brought) -> Brought:
        """The same, filled up to the weight of a guess with what was known before."""
        left = min(max(0.0, GUESS_STEPS - self.steps), before.steps)
        if not left:
            return self
        steps = self.steps + left
        accepted = (self.steps * self.accepted + left * before.accepted) / steps
        return Brought(steps, accepted, (self.steps * self.held_s + left * before.held_s) / steps)

    def at(self, step_s: float, round_trip_s: float) -> Brought:
        """The same as a guess of what it brings where a step takes `step_s`; 0 for either: not known."""
        late = step_s / round_trip_s if 0 < step_s < round_trip_s else 1.0
        return Brought(self.steps, late * self.accepted, self.held_s)


def score(brought: Brought, step_s: float, busy: float) -> float:
    """Tokens per second relative to the target alone; `step_s` 0: not known, then no time was lost."""
    waiting = step_s / (step_s + brought.held_s) if step_s > 0 else 1.0
    return (1 + brought.accepted) * waiting * (1 - COST_OF_BUSY * min(1.0, busy))


class Balance:
    """Scores drafters by what the verifiers of a cluster report of them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._heard = -1
        self._by_drafter: dict[str, Brought] = {}
        """Of all verifiers, by member id. A drafter that is hardly used is remembered as it was: sessions would come back to a bad one."""
        self._seen: dict[str, Brought] = {}
        """The same, without what is remembered."""
        self._by_kind: dict[DrafterKind, Brought] = {}
        self._reports: dict[tuple[str, str], DrafterReport] = {}
        """By verifier and drafter."""

    def score(self, verifier: Seat, drafter: Seat, more: int = 0) -> float:
        """What a session of the verifier would gain from the drafter, if that had so many `more` sessions."""
        self._pool()
        guess, step_s = self._kind(kind_of(drafter)), verifier.load.step_ms * 1e-3
        if drafter.member_id in self._by_drafter:
            guess = self._by_drafter[drafter.member_id].shrunk(guess)
        report = self.report(verifier, drafter)
        brought = Brought.of([report]).shrunk(guess.at(step_s, report.round_trip_s))
        return score(brought, step_s, drafter.busy + more / drafter.who.max_sessions)

    def report(self, verifier: Seat, drafter: Seat) -> DrafterReport:
        """What the verifier said last of the drafter."""
        self._pool()
        return self._reports.get((verifier.member_id, drafter.member_id)) or DrafterReport(drafter.member_id)

    def seen(self, drafter: Seat) -> float:
        """Session steps that verifiers have seen of it lately."""
        self._pool()
        return self._seen[drafter.member_id].steps if drafter.member_id in self._seen else 0.0

    def _kind(self, kind: DrafterKind) -> Brought:
        guess = Brought(0.0, GUESSES[kind])
        return self._by_kind[kind].shrunk(guess) if kind in self._by_kind else guess

    def _pool(self) -> None:
        """Sum up what verifiers have said; anew only after one has said something."""
        if self._heard == self._registry.heard:
            return
        self._heard = self._registry.heard
        kinds = {seat.member_id: kind_of(seat) for seat in self._registry.drafters}
        self._reports = {
            (verifier.member_id, report.member_id): replace(report, steps=min(report.steps, MOST_STEPS))
            for verifier in self._registry.verifiers
            if verifier.speculation is not None
            for report in verifier.speculation.drafters
            if report.member_id in kinds
        }
        reports = self._reports.values()
        by_drafter, by_kind = (
            _grouped(reports, lambda each: each.member_id),
            _grouped(reports, lambda each: kinds[each.member_id]),
        )
        self._seen = {name: Brought.of(group) for name, group in by_drafter.items()}
        told = {name: self._by_drafter.get(name, Brought(0.0, 0.0)) for name in kinds}
        self._by_drafter = {name: self._seen.get(name, Brought(0.0, 0.0)).beside(told[name]) for name in kinds}
        self._by_kind = {kind: Brought.of(group) for kind, group in by_kind.items()}


def _grouped(reports: Iterable[DrafterReport], key: Callable[[DrafterReport], K]) -> Mapping[K, list[DrafterReport]]:
    groups = defaultdict[K, list[DrafterReport]](list)
    for report in reports:
        groups[key(report)].append(report)
    return groups

"""How much a session of a verifier would gain from a drafter: what it brings to such text, how far away it is, how busy it is. Pure.

    score = (1 + accepted) * step_s / (step_s + held_s) * (1 - busy / 4)

`accepted` nodes a step, and `held_s` for which a step was held back, are what the verifier reports of the drafter lately in sessions that
sample, or in those that do not, as the session does: an n-gram drafter may bring much to greedy text and nothing to sampled text. That is
shrunk towards what all verifiers report of the drafter in such sessions, that towards what they report of it in all, that towards what is
reported of its kind, and that towards a guess: each of them weighs as much as 50 steps. For whom little has been seen, and that it answers
later than a step takes, fewer accepted nodes are expected, in proportion. `busy` is the share of its places that are taken. So the score
is tokens per second, relative to the target alone, and a full drafter counts a quarter less than an idle one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from specsplit.clock import Clock
from specsplit.values import DrafterKind, DrafterReport
from specsplit_coordinator.members.member_state import MemberState, kind_of
from specsplit_coordinator.members.registry import Registry

E = TypeVar("E")
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
REMEMBERED_STEPS = 500.0
"""Session steps that what is remembered of a drafter counts as: ten times a guess, which may come from text of the other kind."""
COST_OF_BUSY = 0.25
"""Share of its score that a full drafter loses against an idle one."""
POOL_EVERY_S = 1.0
"""Least time between two sums over what verifiers report: with 64 verifiers and 64 drafters one takes a tenth of a second."""
TEXTS = (False, True)
"""Kinds of text: greedy and sampled."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What a drafter brings in one session step, as a mean, and how many steps that mean rests on."""

    steps: float
    accepted: float
    held_s: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[DrafterReport | Brought]) -> Brought:
        """The mean over `parts`, weighted by their steps."""
        told = [each for each in parts if each.steps > 0]
        steps = sum(each.steps for each in told)
        if not steps:
            return NOTHING
        accepted = sum(each.steps * each.accepted for each in told) / steps
        return cls(steps, accepted, sum(each.steps * each.held_s for each in told) / steps)

    def shrunk(self, guess: Brought) -> Brought:
        """This mean drawn towards a guess: the fewer steps it rests on, the closer."""
        weight = self.steps / (self.steps + GUESS_STEPS)
        accepted = weight * self.accepted + (1 - weight) * guess.accepted
        return Brought(self.steps, accepted, weight * self.held_s + (1 - weight) * guess.held_s)

    def beside(self, before: Brought) -> Brought:
        """This mean filled up with `before`, to as many steps as that rests on but REMEMBERED_STEPS at most.

        It is never filled up to more, since `before` may rest on the very same steps, if they had been reported by then.
        """
        left = max(0.0, min(REMEMBERED_STEPS, before.steps) - self.steps)
        if not left:
            return self
        steps = self.steps + left
        accepted = (self.steps * self.accepted + left * before.accepted) / steps
        return Brought(steps, accepted, (self.steps * self.held_s + left * before.held_s) / steps)

    def at_most(self, steps: float) -> Brought:
        """This mean, resting on `steps` steps at most."""
        return replace(self, steps=min(self.steps, steps))

    def at(self, step_s: float, round_trip_s: float) -> Brought:
        """This mean as a guess for a verifier whose step takes `step_s` and that is `round_trip_s` away; 0 for either: not known."""
        late = step_s / round_trip_s if 0 < step_s < round_trip_s else 1.0
        return Brought(self.steps, late * self.accepted, self.held_s)


NOTHING = Brought(0.0, 0.0)


def score(brought: Brought, step_s: float, busy: float) -> float:
    """Tokens per second relative to the target alone; `step_s` 0: not known, and no time is counted as lost."""
    waiting = step_s / (step_s + brought.held_s) if step_s > 0 else 1.0
    return (1 + brought.accepted) * waiting * (1 - COST_OF_BUSY * min(1.0, busy))


class Balance:
    """Scores drafters by what the verifiers of a cluster report of them."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._due = 0.0
        self._heard = -1
        self.edition = 0
        """How often something has changed by which drafters are scored, apart from the verifier's own steps."""
        self._basis: object = None
        """What was scored by last."""
        self._guesses: dict[tuple[str, DrafterKind, bool], Brought] = {}
        """What drafters should bring where nothing is reported of them, as far as it was asked for since the last sum."""
        self._by_text: dict[tuple[str, bool], Brought] = {}
        """What a drafter brings to all verifiers, by its member id and whether sessions are sampled. One that is hardly used for it is
        remembered as it was: if a bad one were forgotten, sessions would come back to it.
        """
        self._seen: dict[tuple[str, bool], Brought] = {}
        """What verifiers report now, by the keys of `_by_text`, without what is remembered."""
        self._by_kind: dict[DrafterKind, Brought] = {}
        self._reports: dict[tuple[str, str, bool], DrafterReport] = {}
        """The latest reports, by verifier, drafter, and whether sessions are sampled."""
        self._told: Mapping[str, Collection[str]] = {}
        """The drafters of which a verifier reports, by verifier."""

    def score(self, verifier: MemberState, drafter: MemberState, more: int = 0, *, sampled: bool) -> float:
        """What a session of the verifier, sampled or greedy, would gain from the drafter, if that had so many `more` sessions."""
        guess, step_s = self._guess(drafter, sampled), verifier.load.step_ms * 1e-3
        busy = drafter.busy + more / drafter.who.max_sessions
        if not self.reports_on(verifier):
            return score(guess, step_s, busy)
        reports = [self.report(verifier, drafter, sampled=each) for each in TEXTS]
        round_trip_s = max(each.round_trip_s for each in reports)  # the distance is the same for both kinds of text
        brought = Brought.of([reports[sampled]]).shrunk(guess.at(step_s, round_trip_s))
        return score(brought, step_s, busy)

    def reports_on(self, verifier: MemberState) -> Collection[str]:
        """The drafters that the verifier's latest report is on, by member id."""
        self.pool()
        return self._told.get(verifier.member_id, ())

    def report(self, verifier: MemberState, drafter: MemberState, *, sampled: bool) -> DrafterReport:
        """The latest report of the verifier on the drafter; an empty one if there is none."""
        self.pool()
        told = self._reports.get((verifier.member_id, drafter.member_id, sampled))
        return told or DrafterReport(drafter.member_id, sampled=sampled)

    def seen(self, drafter: MemberState, *, sampled: bool) -> float:
        """Session steps that verifiers have seen of the drafter lately."""
        self.pool()
        return self._seen.get((drafter.member_id, sampled), NOTHING).steps

    def _guess(self, drafter: MemberState, sampled: bool) -> Brought:
        """What the drafter should bring to a session of a verifier that has reported nothing of it."""
        self.pool()
        kind = kind_of(drafter)
        key = drafter.member_id, kind, sampled
        if key not in self._guesses:
            self._guesses[key] = self._expected(drafter, kind, sampled)
        return self._guesses[key]

    def _expected(self, drafter: MemberState, kind: DrafterKind, sampled: bool) -> Brought:
        expected = self._by_kind.get(kind, NOTHING).shrunk(Brought(0.0, GUESSES[kind]))
        texts = [self._by_text.get((drafter.member_id, each), NOTHING) for each in TEXTS]
        whole = Brought.of(each.at_most(GUESS_STEPS) for each in texts)  # else the text drafted most would prevail
        return texts[sampled].shrunk(whole.shrunk(expected))

    def pool(self) -> None:
        """Sum up what verifiers report, if one has reported since the last sum, and every POOL_EVERY_S at most."""
        now = self._clock.now()
        if self._heard == self._registry.heartbeats or now < self._due:
            return
        self._heard, self._due = self._registry.heartbeats, now + POOL_EVERY_S
        kinds = {member.member_id: kind_of(member) for member in self._registry.drafters}
        self._reports = {
            (verifier.member_id, report.member_id, report.sampled): replace(report, steps=min(report.steps, MOST_STEPS))
            for verifier in self._registry.verifiers
            if verifier.speculation is not None
            for report in verifier.speculation.drafters
            if report.member_id in kinds
        }
        reports = self._reports.values()
        by_text, by_kind = (
            _grouped(reports, lambda each: (each.member_id, each.sampled)),
            _grouped(reports, lambda each: kinds[each.member_id]),
        )
        self._seen = {text: Brought.of(group) for text, group in by_text.items()}
        self._by_text = {
            text: self._seen.get(text, NOTHING).beside(self._by_text.get(text, NOTHING))
            for text in product(kinds, TEXTS)
        }
        self._by_kind = {kind: Brought.of(group) for kind, group in by_kind.items()}
        self._told = {
            name: {each[1] for each in keys} for name, keys in _grouped(self._reports, lambda each: each[0]).items()
        }
        self._guesses.clear()
        self._note()

    def _note(self) -> None:
        """Count an edition if what was summed up differs from the last one by more than means drift while nothing happens."""
        means = {text: (round(mean.accepted, 2), round(mean.held_s, 4)) for text, mean in self._by_text.items()}
        basis = self._reports, means, [member.sessions for member in self._registry.drafters]
        if basis != self._basis:
            self._basis = basis
            self.edition += 1


def _grouped(entries: Iterable[E], key: Callable[[E], K]) -> Mapping[K, list[E]]:
    groups = defaultdict[K, list[E]](list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return groups

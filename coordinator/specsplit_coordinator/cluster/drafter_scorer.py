"""Scores drafters for sessions of a verifier, by what the verifiers of the cluster report of them. Pure.

    score = (1 + accepted) * step_s / (step_s + held_s) * (1 - busy / 4)

The score is tokens per second, relative to the target alone; a full drafter counts a quarter less than an idle one.

accepted   nodes accepted in a step, lately
held_s     seconds for which a step was held back for the drafter, lately
busy       share of the drafter's places that are taken

The first two are means of what the verifier reports, for sampled and for greedy sessions apart: an n-gram drafter may bring much to greedy
text and nothing to sampled text. They are shrunk (in the sense of statistics) towards what all verifiers report of the drafter on such
text, that towards what they report of it on all text, that towards what is reported of its kind, and that towards a guess; each of these
weighs as much as 50 steps. If the round trip to a drafter is longer than a step, fewer accepted nodes are expected of it, in proportion,
until the verifier has seen enough of it.
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
    DrafterKind.DFLASH: 1.9,
    DrafterKind.DSPARK: 1.85,
    DrafterKind.MULTI_LAYER_EAGLE: 1.8,
    DrafterKind.EAGLE: 1.6,
    DrafterKind.STANDALONE: 1.4,
    DrafterKind.NGRAM: 0.6,
}
"""Accepted nodes a step, before anything is reported. What matters is the order."""
GUESS_STEPS = 50.0
"""Session steps that count as much as a guess."""
MOST_STEPS = 1000.0
"""Session steps of one report that count at most, so that no single verifier decides."""
REMEMBERED_STEPS = 500.0
"""Session steps that what is remembered of a drafter counts as, at most: ten times a guess, which may rest on text of the other kind."""
COST_OF_BUSY = 0.25
"""Share of its score that a full drafter loses against an idle one."""
REFRESH_EVERY_S = 1.0
"""Least time between two sums over all reports: with 64 verifiers and 64 drafters one sum takes a tenth of a second."""
TEXTS = (False, True)
"""The kinds of text: False for greedy, True for sampled."""


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """What a drafter brings in one session step: means, and the number of steps that they rest on."""

    steps: float
    accepted: float
    held_s: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[DrafterReport | DrafterStats]) -> DrafterStats:
        """The mean over `parts`, weighted by their steps."""
        seen = [each for each in parts if each.steps > 0]
        steps = sum(each.steps for each in seen)
        if not steps:
            return NOTHING
        accepted = sum(each.steps * each.accepted for each in seen) / steps
        return cls(steps, accepted, sum(each.steps * each.held_s for each in seen) / steps)

    def shrunk(self, guess: DrafterStats) -> DrafterStats:
        """Shrink these means towards a guess: the fewer steps they rest on, the closer."""
        weight = self.steps / (self.steps + GUESS_STEPS)
        accepted = weight * self.accepted + (1 - weight) * guess.accepted
        return DrafterStats(self.steps, accepted, weight * self.held_s + (1 - weight) * guess.held_s)

    def filled_up(self, before: DrafterStats) -> DrafterStats:
        """Fill these means up with older ones, to as many steps as those rest on, and REMEMBERED_STEPS at most.

        They are not filled up to more, since `before` may rest on some of the same steps.
        """
        left = max(0.0, min(REMEMBERED_STEPS, before.steps) - self.steps)
        if not left:
            return self
        steps = self.steps + left
        accepted = (self.steps * self.accepted + left * before.accepted) / steps
        return DrafterStats(steps, accepted, (self.steps * self.held_s + left * before.held_s) / steps)

    def at_most(self, steps: float) -> DrafterStats:
        """Make the same means count as `steps` steps at most."""
        return replace(self, steps=min(self.steps, steps))

    def at(self, step_s: float, round_trip_s: float) -> DrafterStats:
        """Make of these means a guess for a verifier with steps of `step_s` at a distance of `round_trip_s`; 0 stands for unknown."""
        late = step_s / round_trip_s if 0 < step_s < round_trip_s else 1.0
        return DrafterStats(self.steps, late * self.accepted, self.held_s)


NOTHING = DrafterStats(0.0, 0.0)


def score(stats: DrafterStats, step_s: float, busy: float) -> float:
    """Tokens per second relative to the target alone. `step_s` 0 stands for unknown: then no time counts as lost."""
    waiting = step_s / (step_s + stats.held_s) if step_s > 0 else 1.0
    return (1 + stats.accepted) * waiting * (1 - COST_OF_BUSY * min(1.0, busy))


class DrafterScorer:
    """Scores drafters; the reports are summed up again when there are new ones, once a second at most."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._due = 0.0
        self._heard = -1
        self.version = 0
        """Counts the changes of what scores depend on, apart from the step time of the verifier."""
        self._basis: object = None
        """What scores depend on, as of the last sum."""
        self._guesses: dict[tuple[str, DrafterKind, bool], DrafterStats] = {}
        """What is expected of drafters on a verifier that has reported nothing of them; filled in on demand after each sum."""
        self._by_text: dict[tuple[str, bool], DrafterStats] = {}
        """What a drafter brings to all verifiers, by its member id and kind of text. What it brought is remembered when it is hardly used:
        if a bad drafter were forgotten, sessions would come back to it.
        """
        self._seen: dict[tuple[str, bool], DrafterStats] = {}
        """What drafters bring by the reports of now alone, by the keys of `_by_text`."""
        self._by_kind: dict[DrafterKind, DrafterStats] = {}
        self._reports: dict[tuple[str, str, bool], DrafterReport] = {}
        """The latest reports, by verifier, drafter and kind of text."""
        self._reported: Mapping[str, Collection[str]] = {}
        """By verifier: the drafters of which it reports."""

    def score(self, verifier: MemberState, drafter: MemberState, more: int = 0, *, sampled: bool) -> float:
        """Score the drafter for a session of the verifier, sampled or greedy, as if the drafter had `more` sessions than now."""
        guess, step_s = self._guess(drafter, sampled), verifier.load.step_ms * 1e-3
        busy = drafter.busy + more / drafter.who.max_sessions
        if not self.reports_on(verifier):
            return score(guess, step_s, busy)
        reports = [self.report(verifier, drafter, sampled=each) for each in TEXTS]
        round_trip_s = max(each.round_trip_s for each in reports)  # the distance is the same for both kinds of text
        stats = DrafterStats.of([reports[sampled]]).shrunk(guess.at(step_s, round_trip_s))
        return score(stats, step_s, busy)

    def reports_on(self, verifier: MemberState) -> Collection[str]:
        """The drafters of which the verifier's latest report says something, by member id."""
        self.refresh()
        return self._reported.get(verifier.member_id, ())

    def report(self, verifier: MemberState, drafter: MemberState, *, sampled: bool) -> DrafterReport:
        """The latest report of the verifier on the drafter; an empty one if there is none."""
        self.refresh()
        found = self._reports.get((verifier.member_id, drafter.member_id, sampled))
        return found or DrafterReport(drafter.member_id, sampled=sampled)

    def seen(self, drafter: MemberState, *, sampled: bool) -> float:
        """Session steps of the drafter that all verifiers have reported lately."""
        self.refresh()
        return self._seen.get((drafter.member_id, sampled), NOTHING).steps

    def _guess(self, drafter: MemberState, sampled: bool) -> DrafterStats:
        """What is expected of the drafter on a verifier that has reported nothing of it."""
        self.refresh()
        kind = kind_of(drafter)
        key = drafter.member_id, kind, sampled
        if key not in self._guesses:
            self._guesses[key] = self._expected(drafter, kind, sampled)
        return self._guesses[key]

    def _expected(self, drafter: MemberState, kind: DrafterKind, sampled: bool) -> DrafterStats:
        expected = self._by_kind.get(kind, NOTHING).shrunk(DrafterStats(0.0, GUESSES[kind]))
        texts = [self._by_text.get((drafter.member_id, each), NOTHING) for each in TEXTS]
        whole = DrafterStats.of(
            each.at_most(GUESS_STEPS) for each in texts
        )  # otherwise the kind of text with more steps would decide
        return texts[sampled].shrunk(whole.shrunk(expected))

    def refresh(self) -> None:
        """Sum up what verifiers report, if there is a new report, and once in REFRESH_EVERY_S at most."""
        now = self._clock.now()
        if self._heard == self._registry.heartbeats or now < self._due:
            return
        self._heard, self._due = self._registry.heartbeats, now + REFRESH_EVERY_S
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
        self._seen = {text: DrafterStats.of(group) for text, group in by_text.items()}
        self._by_text = {
            text: self._seen.get(text, NOTHING).filled_up(self._by_text.get(text, NOTHING))
            for text in product(kinds, TEXTS)
        }
        self._by_kind = {kind: DrafterStats.of(group) for kind, group in by_kind.items()}
        self._reported = {
            name: {each[1] for each in keys} for name, keys in _grouped(self._reports, lambda each: each[0]).items()
        }
        self._guesses.clear()
        self._count_version()

    def _count_version(self) -> None:
        """Count a version if the sums differ from the last ones by more than means drift while nothing happens."""
        means = {text: (round(mean.accepted, 2), round(mean.held_s, 4)) for text, mean in self._by_text.items()}
        basis = self._reports, means, [member.sessions for member in self._registry.drafters]
        if basis != self._basis:
            self._basis = basis
            self.version += 1


def _grouped(entries: Iterable[E], key: Callable[[E], K]) -> Mapping[K, list[E]]:
    groups = defaultdict[K, list[E]](list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return groups

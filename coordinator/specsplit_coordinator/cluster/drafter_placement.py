"""Which drafter serves a session. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Final

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary
from specsplit_coordinator.cluster.drafter_scorer import GUESS_STEPS, DrafterScorer
from specsplit_coordinator.members.compatibility import compatible_info
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState
from specsplit_coordinator.members.registry import Registry

EXPLORE_EVERY = 16
"""One greedy session in so many, and one sampled session in so many, explores: it goes to the drafter with the fewest steps on such text
lately, if these are fewer than a guess weighs."""
_FAR = 1e6
"""More than any score: exploring outweighs scores."""
NO_DRAFTER = "none"
"""What a request gives as its drafter to be decoded by the target alone."""
FEW: Final = 32
"""Where there are no more of the kinds that are wanted than these, all drafters are looked at."""
SERVED: Final = 16
"""Of the drafters that a verifier reports on so many are looked at."""
DRAWN: Final = 8
"""Of each kind so many are drawn."""


def check_wish(wish: str | None) -> None:
    """Raise InvalidRequest, naming the known kinds, for a drafter kind that does not exist."""
    known = [*(kind.value for kind in KIND_ORDER), NO_DRAFTER]
    if wish is not None and wish not in known:
        raise InvalidRequest("drafter", f"is {wish!r}, expected one of {', '.join(known)}")


def kinds_of(wish: str | None) -> Sequence[DrafterKind]:
    """The kinds that a known wish allows, best first."""
    return KIND_ORDER if wish is None else (DrafterKind(wish),)


def check_drafters(registry: Registry, wish: str | None, target: Vocabulary) -> None:
    """Raise InvalidRequest for an unknown kind, Unavailable if a session could not get the wished kind of drafter now."""
    check_wish(wish)
    if wish in (None, NO_DRAFTER) or registry.index.drafters.count(kinds_of(wish)):
        return
    looks_up = any(model.looks_up for model in registry.served)
    choose_drafter(registry.drafters, wish, target, looks_up=looks_up)


def choose_drafter(
    drafters: Sequence[MemberState],
    wish: str | None,
    target: Vocabulary,
    cooling_down: Sequence[str] = (),
    score: Callable[[MemberState], float] = lambda drafter: 0.0,
    *,
    looks_up: bool = False,
) -> MemberState | None:
    """Choose the drafter of the wished kind that fits the target and has the highest score; None if the session gets no drafter.

    Without a wish any kind will do, and so will no drafter. Drafters with a free place come before full ones; those that are
    `cooling_down` for the verifier, by member id, come last. `looks_up`: the verifier does what an ngram drafter would where there is none.
    Raises InvalidRequest for an unknown kind, Unavailable if no drafter of the wished kind takes sessions.
    """
    check_wish(wish)
    if wish == NO_DRAFTER:
        return None
    kinds = kinds_of(wish)
    found = [drafter for drafter in drafters if (info := compatible_info(drafter, target)) and info.kind in kinds]
    taking = [drafter for drafter in found if not drafter.closed_because]
    if taking or wish is None or (looks_up and wish == DrafterKind.NGRAM):
        return min(
            taking,
            key=lambda drafter: (drafter.member_id in cooling_down, not drafter.has_free_place, -score(drafter)),
            default=None,
        )
    raise Unavailable(
        f"no {wish} drafter can serve this; {_what_is_there(drafters, target)}; ask for another kind, or leave drafter out"
    )


class DrafterPlacement:
    """Chooses drafters for sessions by their scores; now and then it explores one that has been used little, so that none starves."""

    def __init__(self, scorer: DrafterScorer, chance: Random | None = None) -> None:
        self._scorer = scorer
        self._chance = chance or Random()
        self._placed = Counter[bool]()
        """Sessions placed so far, greedy and sampled ones apart."""

    def choose(
        self, registry: Registry, verifier: MemberState, wish: str | None, target: Vocabulary, *, sampled: bool
    ) -> MemberState | None:
        """The drafter of a session of this verifier; see `choose_drafter`."""
        if wish == NO_DRAFTER:  # which does not count towards exploring
            return None
        self._placed[sampled] += 1
        explores = self._placed[sampled] % EXPLORE_EVERY == 0

        def score(drafter: MemberState) -> float:
            unseen = max(0.0, GUESS_STEPS - self._scorer.seen(drafter, sampled=sampled)) if explores else 0.0
            return unseen * _FAR + self._scorer.score(verifier, drafter, more=1, sampled=sampled)

        among = self._drawn(registry, verifier, wish)
        return choose_drafter(among, wish, target, tuple(verifier.cooling_down), score, looks_up=verifier.looks_up)

    def _drawn(self, registry: Registry, verifier: MemberState, wish: str | None) -> Sequence[MemberState]:
        """The drafters that are looked at: all, or of many those that have served the verifier, and some of each kind that is wanted."""
        index, kinds = registry.index.drafters, kinds_of(wish)
        if index.count(kinds) <= FEW:
            return registry.drafters
        served = (index.get(name) for name in islice(self._scorer.reports_on(verifier), SERVED))
        return [*dict.fromkeys((*filter(None, served), *index.draw(kinds, DRAWN, self._chance)))]


def _what_is_there(drafters: Sequence[MemberState], target: Vocabulary) -> str:
    if not drafters:
        return "the cluster has no drafters"
    counts: Counter[str] = Counter()
    for drafter in drafters:
        info = drafter.who.role
        if isinstance(info, DrafterInfo):
            other = "" if compatible_info(drafter, target) else "another vocabulary"
            state = "draining" if drafter.draining else drafter.closed_because or other
            counts[f"{info.kind.value} ({state})" if state else info.kind.value] += 1
    return "the cluster has " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

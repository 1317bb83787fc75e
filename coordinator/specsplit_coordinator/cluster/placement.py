"""Which verifier decodes a session and which drafter serves it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary
from specsplit_coordinator.cluster.balance import GUESS_STEPS, Balance
from specsplit_coordinator.cluster.need import Need
from specsplit_coordinator.members.fit import fitting_info
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState
from specsplit_coordinator.members.registry import Registry

EXPLORE_EVERY = 16
"""One greedy session in so many, and one sampled one, goes to the drafter of which such text has seen least lately, if that is less than
what a guess weighs."""
MUCH_BUSIER = 0.25
"""Share of its places that a verifier may have taken beyond the least busy one and still be chosen for the pages that it has."""
_FAR = 1e6
"""More than any score."""
NO_DRAFTER = "none"
"""The wish to be decoded by the target alone."""


def check_wish(wish: str | None) -> None:
    """Raise InvalidRequest, naming the known kinds, for a drafter kind that does not exist."""
    known = [*(kind.value for kind in KIND_ORDER), NO_DRAFTER]
    if wish is not None and wish not in known:
        raise InvalidRequest("drafter", f"is {wish!r}, expected one of {', '.join(known)}")


def candidates(verifiers: Sequence[MemberState]) -> list[MemberState]:
    """The verifiers that may be given a session, full ones included. Raises Unavailable if there are none.

    One that has just failed is a candidate only if all of them have.
    """
    if not verifiers:
        raise Unavailable("no verifier has joined the cluster; start one, or try again when it has loaded its model")
    taking = [verifier for verifier in verifiers if not verifier.closed_because]
    if not taking:
        why = ", ".join(
            dict.fromkeys(verifier.closed_because for verifier in verifiers)
        )  # all ranks of a group give one reason
        raise Unavailable(f"no verifier takes sessions: {why}; try again when one does")
    return [verifier for verifier in taking if verifier.breaker.admits] or taking


def free_places(registry: Registry) -> int:
    """Count them on verifiers that take sessions. Raises Unavailable if there is none, and none that may be back in a moment."""
    try:
        return sum(verifier.free_places for verifier in candidates(registry.verifiers))
    except Unavailable:
        if registry.awaited:
            return 0
        raise


def choose_verifier(
    verifiers: Sequence[MemberState], need: Need | None = None, *, sound_s: float | None = None, patient: bool = False
) -> MemberState | None:
    """The candidate with room that suits a session best; None if all are full. Raises Unavailable if none takes sessions at all.

    Where one can ever hold the session, those that cannot are left out. Then one that has the pages, or lacks least, then that for
    which the fewest wait, then that which has most of the text's beginning unless it is much busier than others, then the least busy.
    One whose target has failed on the session is a candidate only if that of all others has, too.
    `sound_s`: none that has just failed, or of whose group a rank has failed in so many seconds, since ranks are lost together; and those
    first that have not failed since they answered. Raises Unavailable if there is no other.
    Where none can ever hold it, one is chosen all the same, and says why not; unless the session is `patient`: raises Unavailable then.
    """
    wanted = need or Need()
    able = _able(verifiers, wanted)
    among = candidates(able or verifiers)
    if patient and not able:
        raise Unavailable("no verifier that is there can hold this session; try again when one that can is back")
    if sound_s is not None:
        failing = {each.group for each in verifiers if each.group is not None and each.breaker.failed_s < sound_s}
        among = [verifier for verifier in among if verifier.breaker.admits and verifier.group not in failing]
        if not among:
            raise Unavailable("every verifier that takes sessions has just failed")
    among = [verifier for verifier in among if verifier.member_id not in wanted.failed_on] or among
    not_full = [verifier for verifier in among if verifier.has_free_place]
    least = min((verifier.busy for verifier in not_full), default=0.0)

    def merit(verifier: MemberState) -> tuple[bool, bool, int, int, int, float]:
        lacking = pages_lacking(verifier, wanted)
        known = pages_known(verifier, wanted) if verifier.busy <= least + MUCH_BUSIER else 0
        suspect = sound_s is not None and verifier.breaker.failures > 0
        return suspect, lacking > 0, verifier.load.waiting, lacking, -known, verifier.busy

    return min(not_full, key=merit, default=None)


def better_verifier(verifiers: Sequence[MemberState], preempted_by: MemberState, need: Need) -> MemberState | None:
    """One that has the pages for a session which another had to preempt, and nobody waiting; None if there is none."""
    others = [
        each for each in verifiers if each is not preempted_by and not each.closed_because and each.breaker.admits
    ]
    told = [verifier for verifier in others if verifier.load.page_size and not verifier.load.waiting]
    sound = [verifier for verifier in told if verifier.member_id not in need.failed_on]
    fit = [verifier for verifier in sound if not pages_lacking(verifier, need) and _holds(verifier, need, preempted_by)]
    return choose_verifier(fit, need) if fit else None


def _holds(verifier: MemberState, need: Need, preempted_by: MemberState) -> bool:
    """True if a session can end here as it would have where it is."""
    if need.open_ended:
        return verifier.load.total_pages >= preempted_by.load.total_pages and verifier.context >= preempted_by.context
    return _can_hold(verifier, need, verifier.drafted)


def pages_lacking(verifier: MemberState, need: Need) -> int:
    """KV pages that a session would have to wait for; 0 where they are there, and where the verifier has not said."""
    size, free = verifier.load.page_size, verifier.load.free_pages - verifier.promised_pages
    return max(0, need.pages(size) - max(0, free)) if size else 0


def pages_known(verifier: MemberState, need: Need) -> int:
    """Pages with which a session's text begins whose KV the verifier has; none known where it has not said how large its pages are."""
    if not verifier.prefixes or not verifier.load.page_size:
        return 0
    known = frozenset(verifier.prefixes)
    return sum(1 for _ in takewhile(known.__contains__, need.marks(verifier.load.page_size)))


def _able(verifiers: Sequence[MemberState], need: Need) -> list[MemberState]:
    """Verifiers that take sessions and can ever hold this one, with as much drafted for it as may be; if none can, with what is now."""
    taking = [verifier for verifier in verifiers if not verifier.closed_because]
    large_enough = [verifier for verifier in taking if _can_hold(verifier, need, verifier.drafted)]
    return large_enough or [each for each in taking if _can_hold(each, need, min(each.drafted, each.drafted_now))]


def _can_hold(verifier: MemberState, need: Need, drafted: int) -> bool:
    """True if a verifier's context, and its pool as far as it has told of that, are large enough, with so much drafted for the session."""
    size = verifier.load.page_size
    return need.most_tokens <= verifier.context and (
        not size or need.most_pages(size, drafted) <= verifier.load.total_pages
    )


def has_other(verifiers: Sequence[MemberState], failed: MemberState) -> bool:
    """True if a session that `failed` has let down may be given to another verifier, at once or later."""
    return any(
        verifier is not failed and not verifier.closed_because and verifier.breaker.admits for verifier in verifiers
    )


def choose_drafter(
    drafters: Sequence[MemberState],
    wish: str | None,
    target: Vocabulary,
    cooling_down: Sequence[str] = (),
    score: Callable[[MemberState], float] = lambda drafter: 0.0,
) -> MemberState | None:
    """A drafter of the wished kind that fits the target, with room if possible, the one of the highest score; None for none.

    Without a wish any kind will do, and no drafter at all is fine. Those that are `cooling_down` for the verifier, by member id, are
    taken last. Raises InvalidRequest for an unknown kind, Unavailable if nothing of the wished kind can serve.
    """
    check_wish(wish)
    if wish == NO_DRAFTER:
        return None
    kinds = KIND_ORDER if wish is None else (DrafterKind(wish),)
    found = [drafter for drafter in drafters if (info := fitting_info(drafter, target)) and info.kind in kinds]
    taking = [drafter for drafter in found if not drafter.closed_because]
    if taking or wish is None:
        return min(
            taking,
            key=lambda drafter: (drafter.member_id in cooling_down, not drafter.has_free_place, -score(drafter)),
            default=None,
        )
    raise Unavailable(
        f"no {wish} drafter can serve this; {_what_is_there(drafters, target)}; ask for another kind, or leave drafter out"
    )


class DrafterPlacement:
    """Chooses drafters for sessions by what they bring to such text; at times one of which little has been seen, so that none starves."""

    def __init__(self, balance: Balance) -> None:
        self._balance = balance
        self._placed = Counter[bool]()
        """Greedy and sampled sessions so far."""

    def choose(
        self, registry: Registry, verifier: MemberState, wish: str | None, target: Vocabulary, *, sampled: bool
    ) -> MemberState | None:
        """The drafter of a session of this verifier; see `choose_drafter`."""
        if wish == NO_DRAFTER:  # explores nothing
            return None
        self._placed[sampled] += 1
        explores = self._placed[sampled] % EXPLORE_EVERY == 0

        def score(drafter: MemberState) -> float:
            unseen = max(0.0, GUESS_STEPS - self._balance.seen(drafter, sampled=sampled)) if explores else 0.0
            return unseen * _FAR + self._balance.score(verifier, drafter, more=1, sampled=sampled)

        return choose_drafter(registry.drafters, wish, target, tuple(verifier.cooling_down), score)


def _what_is_there(drafters: Sequence[MemberState], target: Vocabulary) -> str:
    if not drafters:
        return "the cluster has no drafters"
    counts: Counter[str] = Counter()
    for drafter in drafters:
        info = drafter.who.role
        if isinstance(info, DrafterInfo):
            other = "" if fitting_info(drafter, target) else "another vocabulary"
            state = "draining" if drafter.draining else drafter.closed_because or other
            counts[f"{info.kind.value} ({state})" if state else info.kind.value] += 1
    return "the cluster has " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

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
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.seat import KIND_ORDER, Seat

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


def candidates(verifiers: Sequence[Seat]) -> list[Seat]:
    """The verifiers that may be given a session, full ones included. Raises Unavailable if there are none.

    One that has just failed is a candidate only if all of them have.
    """
    if not verifiers:
        raise Unavailable("no verifier has joined the cluster; start one, or try again when it has loaded its model")
    taking = [seat for seat in verifiers if not seat.closed_because]
    if not taking:
        why = ", ".join(
            dict.fromkeys(seat.closed_because for seat in verifiers)
        )  # all ranks of a group give one reason
        raise Unavailable(f"no verifier takes sessions: {why}; try again when one does")
    return [seat for seat in taking if seat.breaker.admits] or taking


def free_places(registry: Registry) -> int:
    """Count them on verifiers that take sessions. Raises Unavailable if there is none, and none that may be back in a moment."""
    try:
        return sum(seat.free_places for seat in candidates(registry.verifiers))
    except Unavailable:
        if registry.awaited:
            return 0
        raise


def choose_verifier(
    verifiers: Sequence[Seat], need: Need | None = None, *, sound_s: float | None = None, patient: bool = False
) -> Seat | None:
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
        failing = {seat.group for seat in verifiers if seat.group is not None and seat.breaker.failed_s < sound_s}
        among = [seat for seat in among if seat.breaker.admits and seat.group not in failing]
        if not among:
            raise Unavailable("every verifier that takes sessions has just failed")
    among = [seat for seat in among if seat.member_id not in wanted.failed_on] or among
    not_full = [seat for seat in among if seat.has_free_place]
    least = min((seat.busy for seat in not_full), default=0.0)

    def merit(seat: Seat) -> tuple[bool, bool, int, int, int, float]:
        lacking = pages_lacking(seat, wanted)
        known = pages_known(seat, wanted) if seat.busy <= least + MUCH_BUSIER else 0
        suspect = sound_s is not None and seat.breaker.failures > 0
        return suspect, lacking > 0, seat.load.waiting, lacking, -known, seat.busy

    return min(not_full, key=merit, default=None)


def better_verifier(verifiers: Sequence[Seat], preempted_by: Seat, need: Need) -> Seat | None:
    """One that has the pages for a session which another had to preempt, and nobody waiting; None if there is none."""
    others = [
        seat for seat in verifiers if seat is not preempted_by and not seat.closed_because and seat.breaker.admits
    ]
    told = [seat for seat in others if seat.load.page_size and not seat.load.waiting]
    sound = [seat for seat in told if seat.member_id not in need.failed_on]
    fit = [seat for seat in sound if not pages_lacking(seat, need) and _holds(seat, need, preempted_by)]
    return choose_verifier(fit, need) if fit else None


def _holds(seat: Seat, need: Need, preempted_by: Seat) -> bool:
    """True if a session can end here as it would have where it is."""
    if need.open_ended:
        return seat.load.total_pages >= preempted_by.load.total_pages and seat.context >= preempted_by.context
    return _can_hold(seat, need, seat.drafted)


def pages_lacking(seat: Seat, need: Need) -> int:
    """KV pages that a session would have to wait for; 0 where they are there, and where the verifier has not said."""
    size, free = seat.load.page_size, seat.load.free_pages - seat.promised_pages
    return max(0, need.pages(size) - max(0, free)) if size else 0


def pages_known(seat: Seat, need: Need) -> int:
    """Pages with which a session's text begins whose KV the verifier has; none known where it has not said how large its pages are."""
    if not seat.prefixes or not seat.load.page_size:
        return 0
    known = frozenset(seat.prefixes)
    return sum(1 for _ in takewhile(known.__contains__, need.marks(seat.load.page_size)))


def _able(verifiers: Sequence[Seat], need: Need) -> list[Seat]:
    """Verifiers that take sessions and can ever hold this one, with as much drafted for it as may be; if none can, with what is now."""
    taking = [seat for seat in verifiers if not seat.closed_because]
    large_enough = [seat for seat in taking if _can_hold(seat, need, seat.drafted)]
    return large_enough or [seat for seat in taking if _can_hold(seat, need, min(seat.drafted, seat.drafted_now))]


def _can_hold(seat: Seat, need: Need, drafted: int) -> bool:
    """True if a verifier's context, and its pool as far as it has told of that, are large enough, with so much drafted for the session."""
    size = seat.load.page_size
    return need.most_tokens <= seat.context and (not size or need.most_pages(size, drafted) <= seat.load.total_pages)


def has_other(verifiers: Sequence[Seat], failed: Seat) -> bool:
    """True if a session that `failed` has let down may be given to another verifier, at once or later."""
    return any(seat is not failed and not seat.closed_because and seat.breaker.admits for seat in verifiers)


def choose_drafter(
    drafters: Sequence[Seat],
    wish: str | None,
    target: Vocabulary,
    cooling_down: Sequence[str] = (),
    score: Callable[[Seat], float] = lambda seat: 0.0,
) -> Seat | None:
    """A drafter of the wished kind that fits the target, with room if possible, the one of the highest score; None for none.

    Without a wish any kind will do, and no drafter at all is fine. Those that are `cooling_down` for the verifier, by member id, are
    taken last. Raises InvalidRequest for an unknown kind, Unavailable if nothing of the wished kind can serve.
    """
    check_wish(wish)
    if wish == NO_DRAFTER:
        return None
    kinds = KIND_ORDER if wish is None else (DrafterKind(wish),)
    found = [seat for seat in drafters if (info := fitting_info(seat, target)) and info.kind in kinds]
    taking = [seat for seat in found if not seat.closed_because]
    if taking or wish is None:
        return min(
            taking,
            key=lambda seat: (seat.member_id in cooling_down, not seat.has_free_place, -score(seat)),
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
        self, registry: Registry, verifier: Seat, wish: str | None, target: Vocabulary, *, sampled: bool
    ) -> Seat | None:
        """The drafter of a session of this verifier; see `choose_drafter`."""
        if wish == NO_DRAFTER:  # explores nothing
            return None
        self._placed[sampled] += 1
        explores = self._placed[sampled] % EXPLORE_EVERY == 0

        def score(drafter: Seat) -> float:
            unseen = max(0.0, GUESS_STEPS - self._balance.seen(drafter, sampled=sampled)) if explores else 0.0
            return unseen * _FAR + self._balance.score(verifier, drafter, more=1, sampled=sampled)

        return choose_drafter(registry.drafters, wish, target, tuple(verifier.cooling_down), score)


def _what_is_there(drafters: Sequence[Seat], target: Vocabulary) -> str:
    if not drafters:
        return "the cluster has no drafters"
    counts: Counter[str] = Counter()
    for seat in drafters:
        info = seat.who.role
        if isinstance(info, DrafterInfo):
            other = "" if fitting_info(seat, target) else "another vocabulary"
            state = "draining" if seat.draining else seat.closed_because or other
            counts[f"{info.kind.value} ({state})" if state else info.kind.value] += 1
    return "the cluster has " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

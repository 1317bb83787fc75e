"""Which verifier decodes a session and which drafter serves it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary
from specsplit_coordinator.registry import KIND_ORDER, Seat, fitting_info

NO_DRAFTER = "none"
"""The wish to be decoded by the target alone."""


def check_wish(wish: str | None) -> None:
    """Raise InvalidRequest, naming the known kinds, for a drafter kind that does not exist."""
    known = [*(kind.value for kind in KIND_ORDER), NO_DRAFTER]
    if wish is not None and wish not in known:
        raise InvalidRequest("drafter", f"is {wish!r}, expected one of {', '.join(known)}")


def candidates(verifiers: Sequence[Seat]) -> list[Seat]:
    """Those that may be given a session, full ones included. Raises Unavailable if there are none.

    One that has just failed is a candidate only if all of them have.
    """
    if not verifiers:
        raise Unavailable("no verifier has joined the cluster; start one, or try again when it has loaded its model")
    staying = [seat for seat in verifiers if not seat.draining]
    if not staying:
        names = ", ".join(seat.member_id for seat in verifiers)
        raise Unavailable(f"every verifier is draining ({names}); try again when another has joined")
    return [seat for seat in staying if seat.breaker.admits] or staying


def choose_verifier(verifiers: Sequence[Seat]) -> Seat | None:
    """The least busy candidate with room; None if all are full. Raises Unavailable if none takes sessions at all."""
    return min((seat for seat in candidates(verifiers) if seat.has_room), key=lambda seat: seat.busy, default=None)


def has_other(verifiers: Sequence[Seat], failed: Seat) -> bool:
    """True if a session that `failed` has let down may be given to another verifier, at once or later."""
    return any(seat is not failed and not seat.draining and seat.breaker.admits for seat in verifiers)


def choose_drafter(
    drafters: Sequence[Seat], wish: str | None, target: Vocabulary, cooling_down: Sequence[str] = ()
) -> Seat | None:
    """A drafter of the wished kind that fits the target, with room if possible, the least busy; None for none.

    Without a wish the best kind is taken, and no drafter at all is fine. Those that are `cooling_down` for the verifier, by member id,
    are taken last. Raises InvalidRequest for an unknown kind, Unavailable if nothing of the wished kind can serve.
    """
    check_wish(wish)
    if wish == NO_DRAFTER:
        return None
    kinds = KIND_ORDER if wish is None else (DrafterKind(wish),)
    found: list[tuple[tuple[bool, bool, int, float], int, Seat]] = []
    for order, seat in enumerate(drafters):
        info = fitting_info(seat, target)
        if info is not None and info.kind in kinds and not seat.draining:
            rank = (seat.member_id in cooling_down, not seat.has_room, kinds.index(info.kind), seat.busy)
            found.append((rank, order, seat))
    if found:
        return min(found, key=lambda entry: entry[:2])[2]
    if wish is None:
        return None
    raise Unavailable(f"no {wish} drafter can serve this; {_what_is_there(drafters, target)}")


def _what_is_there(drafters: Sequence[Seat], target: Vocabulary) -> str:
    if not drafters:
        return "the cluster has no drafters"
    counts: Counter[str] = Counter()
    for seat in drafters:
        info = seat.who.role
        if isinstance(info, DrafterInfo):
            state = " (draining)" if seat.draining else "" if fitting_info(seat, target) else " (another vocabulary)"
            counts[f"{info.kind.value}{state}"] += 1
    return "the cluster has " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

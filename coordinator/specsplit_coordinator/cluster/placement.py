"""Which verifier decodes a session and which drafter serves it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary
from specsplit_coordinator.cluster.drafter_scorer import GUESS_STEPS, DrafterScorer
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import compatible_info
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState
from specsplit_coordinator.members.registry import Registry

EXPLORE_EVERY = 16
"""One greedy session in so many, and one sampled session in so many, explores: it goes to the drafter with the fewest steps on such text
lately, if these are fewer than a guess weighs."""
MUCH_BUSIER = 0.25
"""How much busier than the least busy verifier, as a share of its places, one may be and still be chosen for its cached pages."""
_FAR = 1e6
"""More than any score: exploring outweighs scores."""
NO_DRAFTER = "none"
"""What a request gives as its drafter to be decoded by the target alone."""


def check_wish(wish: str | None) -> None:
    """Raise InvalidRequest, naming the known kinds, for a drafter kind that does not exist."""
    known = [*(kind.value for kind in KIND_ORDER), NO_DRAFTER]
    if wish is not None and wish not in known:
        raise InvalidRequest("drafter", f"is {wish!r}, expected one of {', '.join(known)}")


def candidates(verifiers: Sequence[MemberState]) -> list[MemberState]:
    """The verifiers that take sessions, full ones included. Raises Unavailable if there are none.

    Those that have just failed are left out, unless all of them have.
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
    """Sessions that verifiers have room for now. Raises Unavailable if no verifier takes sessions and none is expected back."""
    index = registry.index.verifiers
    if not index.open and not registry.awaited:
        candidates(registry.verifiers)  # says why
    return index.free_places


def choose_verifier(
    verifiers: Sequence[MemberState],
    request: PlacementRequest | None = None,
    *,
    sound_s: float | None = None,
    patient: bool = False,
) -> MemberState | None:
    """Choose the verifier with a free place that suits a session best; None if all are full. Raises Unavailable if none takes sessions.

    Verifiers that can never hold the session are left out. If that leaves none, one of them is chosen all the same, and refuses the
    session with the reason; but for a `patient` session, which waits for another verifier, Unavailable is raised.
    Verifiers whose target has failed on the session are left out, unless that leaves none.
    The others are preferred in this order: enough free pages, or the fewest lacking; the shortest queue; the most cached pages of the
    text's beginning, unless the verifier is much busier than others; the fewest sessions.
    `sound_s`, for a session that a verifier has failed, leaves out verifiers that have just failed, and groups of which a rank has failed
    within so many seconds, since ranks are lost together; verifiers that have failed since they last answered come last. Raises
    Unavailable if that leaves none.
    """
    wanted = request or PlacementRequest()
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


def better_verifier(
    verifiers: Sequence[MemberState], preempted_by: MemberState, wanted: PlacementRequest
) -> MemberState | None:
    """Choose a verifier with the pages for a session that another had to preempt, and with no queue; None if there is none."""
    others = [
        each for each in verifiers if each is not preempted_by and not each.closed_because and each.breaker.admits
    ]
    known = [verifier for verifier in others if verifier.load.page_size and not verifier.load.waiting]
    sound = [verifier for verifier in known if verifier.member_id not in wanted.failed_on]
    fit = [
        verifier for verifier in sound if not pages_lacking(verifier, wanted) and _holds(verifier, wanted, preempted_by)
    ]
    return choose_verifier(fit, wanted) if fit else None


def _holds(verifier: MemberState, wanted: PlacementRequest, preempted_by: MemberState) -> bool:
    """True if a session can run to the same end on this verifier as on the one that preempted it."""
    if wanted.open_ended:
        return (
            verifier.load.total_pages >= preempted_by.load.total_pages
            and verifier.max_context >= preempted_by.max_context
        )
    return _can_hold(verifier, wanted, verifier.max_draft_tokens)


def pages_lacking(verifier: MemberState, wanted: PlacementRequest) -> int:
    """KV pages that a session would have to wait for; 0 if they are free, or the verifier has not reported its pages."""
    load, free = verifier.load, verifier.load.free_pages - verifier.reserved_pages
    if not load.page_size:
        return 0
    lacking = wanted.pages(load) - max(0, free), wanted.window_pages(load) - load.free_window_pages
    return max(0, *lacking)


def pages_known(verifier: MemberState, wanted: PlacementRequest) -> int:
    """Leading pages of a session's text whose KV the verifier has cached; 0 if it has not reported its page size."""
    if not verifier.prefixes or not verifier.load.page_size:
        return 0
    known = frozenset(verifier.prefixes)
    return sum(1 for _ in takewhile(known.__contains__, wanted.marks(verifier.load.page_size)))


def _able(verifiers: Sequence[MemberState], wanted: PlacementRequest) -> list[MemberState]:
    """Verifiers that take sessions and can hold this one to its end.

    That is reckoned with the most draft tokens that a controller may choose; if none can, with those of the plan in force.
    """
    taking = [verifier for verifier in verifiers if not verifier.closed_because]
    large_enough = [verifier for verifier in taking if _can_hold(verifier, wanted, verifier.max_draft_tokens)]
    return large_enough or [
        each for each in taking if _can_hold(each, wanted, min(each.max_draft_tokens, each.plan_draft_tokens))
    ]


def _can_hold(verifier: MemberState, wanted: PlacementRequest, draft_tokens: int) -> bool:
    """True if the context of a verifier, and its KV pool if it has reported one, are large enough with so many tokens in a step."""
    load = verifier.load
    return wanted.max_length <= verifier.max_context and (
        not load.page_size or wanted.max_pages(load, draft_tokens) <= load.total_pages
    )


def has_other(verifiers: Sequence[MemberState], failed: MemberState) -> bool:
    """True if a session that `failed` did not finish may be placed on another verifier, now or when it has room."""
    return any(
        verifier is not failed and not verifier.closed_because and verifier.breaker.admits for verifier in verifiers
    )


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
    kinds = KIND_ORDER if wish is None else (DrafterKind(wish),)
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

    def __init__(self, scorer: DrafterScorer) -> None:
        self._scorer = scorer
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

        return choose_drafter(
            registry.drafters, wish, target, tuple(verifier.cooling_down), score, looks_up=verifier.looks_up
        )


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

"""Which of some verifiers decodes a session. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

from specsplit.errors import Unavailable
from specsplit_coordinator.cluster.outlook import ALONE, Outlook
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import having
from specsplit_coordinator.members.group import Group
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

MUCH_BUSIER = 0.25
"""How much busier than the least busy verifier, as a share of its places, one may be and still be chosen for its cached pages."""


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
    if not index.choices.all.open and not registry.awaited:
        candidates(registry.verifiers)  # says why
    return index.free_places


def choose_verifier(
    verifiers: Sequence[MemberState],
    request: PlacementRequest | None = None,
    *,
    sound_s: float | None = None,
    patient: bool = False,
    outlook: Outlook = ALONE,
) -> MemberState | None:
    """Choose the verifier with a free place that suits a session best; None if all are full. Raises Unavailable if none takes sessions, or
    none that is there has its adapter.

    Verifiers that can never hold the session are left out. If that leaves none, one of them is chosen all the same, and refuses the
    session with the reason; but for a `patient` session, which waits for another verifier, Unavailable is raised.
    Verifiers whose target has failed on the session are left out, unless that leaves none.
    The others are preferred in this order: enough free pages, or the fewest lacking; the shortest queue; the most cached pages of the
    text's beginning, unless the verifier is much busier than others; what `outlook` prefers; the fewest sessions, by what it expects.
    `sound_s`, for a session that a verifier has failed, leaves out verifiers that have just failed, and groups of which a rank has failed
    within so many seconds, since ranks are lost together; verifiers that have failed since they last answered come last. Raises
    Unavailable if that leaves none.
    """
    wanted = request or PlacementRequest()
    verifiers = _fitting(verifiers, wanted)
    able = _able(verifiers, wanted)
    among = candidates(able or verifiers)
    if patient and not able:
        raise Unavailable("no verifier that is there can hold this session; try again when one that can is back")
    if sound_s is not None:
        failing = failing_groups(verifiers, sound_s)
        among = [verifier for verifier in among if verifier.breaker.admits and verifier.group not in failing]
        if not among:
            raise Unavailable("every verifier that takes sessions has just failed")
    among = [verifier for verifier in among if verifier.member_id not in wanted.failed_on] or among
    not_full = [verifier for verifier in among if verifier.has_free_place]
    busy = {verifier: outlook.busy(verifier) for verifier in not_full}
    least = min(busy.values(), default=0.0)

    def merit(verifier: MemberState) -> tuple[bool, bool, int, int, int, bool, float]:
        lacking = pages_lacking(verifier, wanted)
        known = pages_known(verifier, wanted) if busy[verifier] <= least + MUCH_BUSIER else 0
        suspect, queue = sound_s is not None and verifier.breaker.failures > 0, verifier.load.waiting
        return suspect, lacking > 0, queue, lacking, -known, not outlook.prefers(verifier), busy[verifier]

    return min(not_full, key=merit, default=None)


def failing_groups(verifiers: Iterable[MemberState], within_s: float) -> Collection[Group]:
    """The groups of which a rank has failed a session within so many seconds, and has answered none since."""
    return {each.group for each in verifiers if each.group is not None and each.breaker.failed_s < within_s}


def _fitting(verifiers: Sequence[MemberState], wanted: PlacementRequest) -> Sequence[MemberState]:
    """The verifiers that have the session's adapter. Raises Unavailable if there are verifiers, and none has it."""
    fitting = having(verifiers, wanted.adapter)
    if verifiers and not fitting and wanted.adapter is not None:
        raise Unavailable(f"no verifier that is there has adapter {wanted.adapter.name}; try again when one is back")
    return fitting


def better_verifier(
    verifiers: Sequence[MemberState], preempted_by: MemberState, wanted: PlacementRequest
) -> MemberState | None:
    """Choose a verifier with the pages for a session that another had to preempt, and with no queue; None if there is none."""
    others = [
        each
        for each in having(verifiers, wanted.adapter)
        if each is not preempted_by and not each.closed_because and each.breaker.admits
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
    return can_hold(verifier, wanted, verifier.max_draft_tokens)


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
    marks = wanted.marks(verifier.load.page_size)
    return sum(1 for _ in takewhile(verifier.latest.pages.__contains__, marks))


def _able(verifiers: Sequence[MemberState], wanted: PlacementRequest) -> list[MemberState]:
    """Verifiers that take sessions and can hold this one to its end.

    That is reckoned with the most draft tokens that a controller may choose; if none can, with those of the plan in force.
    """
    taking = [verifier for verifier in verifiers if not verifier.closed_because]
    large_enough = [verifier for verifier in taking if can_hold(verifier, wanted, verifier.max_draft_tokens)]
    return large_enough or [
        each for each in taking if can_hold(each, wanted, min(each.max_draft_tokens, each.plan_draft_tokens))
    ]


def can_hold(verifier: MemberState, wanted: PlacementRequest, draft_tokens: int) -> bool:
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

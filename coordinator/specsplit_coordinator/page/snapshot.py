"""The cluster as values ready for JSON: who is there, what runs, and the sums from which rates are made."""

from __future__ import annotations

from collections import deque
from typing import Any

from specsplit.build import build
from specsplit.clock import Clock
from specsplit.membership import GroupRank
from specsplit.values import DrafterInfo, ModelInfo, Plan, SpeculationReport
from specsplit_coordinator.members.orders import Orders
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.seat import Seat
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.request_log import LoggedRequest, RequestLog

GONE_SHOWN_S = 30.0
"""How long a member is shown that is no longer there."""
GONE_KEPT = 8


class ClusterSnapshot:
    """Describes the cluster as it is whenever it is asked."""

    def __init__(
        self, model: str, registry: Registry, admission: Admission, requests: RequestLog, orders: Orders, clock: Clock
    ) -> None:
        self._model = model
        self._registry = registry
        self._admission = admission
        self._requests = requests
        self._orders = orders
        self._clock = clock
        self._gone: deque[tuple[Seat, float]] = deque(maxlen=GONE_KEPT)
        registry.on_gone.append(lambda seat: self._gone.append((seat, clock.now())))

    def now(self) -> dict[str, Any]:
        """The state of the cluster. Its times are seconds of a clock of which only differences mean something."""
        now = self._clock.now()
        present = {member.member_id for member in self._registry.members}
        late = {seat.member_id: seat for seat, at in self._gone if now - at < GONE_SHOWN_S}
        gone = [seat for name, seat in late.items() if name not in present]
        verifiers = [*self._registry.verifiers, *(seat for seat in gone if isinstance(seat.who.role, ModelInfo))]
        drafters = [*self._registry.drafters, *(seat for seat in gone if isinstance(seat.who.role, DrafterInfo))]
        requests = self._requests
        return {
            "now": now,
            "model": self._model,
            "build": build(),
            "queued": self._admission.queued,
            "running": self._admission.running,
            "verifiers": [_verifier(seat, now) for seat in verifiers],
            "drafters": [_drafter(seat, now) for seat in drafters],
            "plan_changes": _said(vars(self._orders.plan) | vars(self._orders.control)),
            "requests": [_request(request, now) for request in requests.requests],
            "totals": {
                "requests": requests.totals.arrived,
                "tokens": requests.totals.tokens,
                "steps": requests.totals.steps,
                "accepted": requests.totals.accepted,
                "failovers": requests.totals.failovers,
                "preemptions": requests.totals.preemptions,
            },
        }


def _verifier(seat: Seat, now: float) -> dict[str, Any]:
    assert isinstance(seat.who.role, ModelInfo)
    plan: Plan | None = seat.plan
    return _member(seat, now) | {
        "model": seat.who.role.model,
        "plan": None if plan is None else vars(plan),
        "speculation": None if seat.speculation is None else _speculation(seat.speculation),
    }


def _speculation(report: SpeculationReport) -> dict[str, Any]:
    estimate = report.estimate
    return {
        "adaptive": report.adaptive,
        "max_draft_tokens": report.max_draft_tokens,
        "accept_length": round(report.accept_length, 3),
        "hit_rate": round(report.hit_rate, 3),
        "estimate": None if estimate is None else {"rate": estimate.rate, "static_rate": estimate.static_rate},
        "no_drafts": None if report.no_drafts is None else report.no_drafts.sentence,
    }


def _drafter(seat: Seat, now: float) -> dict[str, Any]:
    assert isinstance(seat.who.role, DrafterInfo)
    return _member(seat, now) | {"model": seat.who.role.model, "kind": seat.who.role.kind.value}


def _member(seat: Seat, now: float) -> dict[str, Any]:
    load = seat.load
    return {
        "name": seat.member_id,
        "address": seat.who.address,
        "build": seat.who.build,
        "state": _state(seat),
        "why": seat.lost_because or "",
        "silent_s": round(now - seat.heard_at, 2),
        "sessions": load.sessions,
        "waiting": load.waiting,
        "max_sessions": seat.who.max_sessions,
        "used_pages": load.total_pages - load.free_pages,
        "total_pages": load.total_pages,
        "steps": load.steps,
        "step_ms": load.step_ms,
        "group": None if seat.who.group is None else _rank(seat.who.group, seat),
    }


def _rank(group: GroupRank, seat: Seat) -> dict[str, Any]:
    """Tell which rank of a group it is, and where that stands; what it does is empty until it has said so."""
    wave = seat.wave
    return vars(group) | {
        "wave": 0 if wave is None else wave.number,
        "state": "" if wave is None else wave.state(seat.sessions).value,
    }


def _state(seat: Seat) -> str:
    if seat.lost_because is not None:
        return "left" if seat.leaving else "lost"
    return "draining" if seat.leaving else "serving"


def _request(request: LoggedRequest, now: float) -> dict[str, Any]:
    seconds = now - request.arrived_at if request.ending is None else request.ending.after_s
    return {
        "number": request.number,
        "id": request.request_id,
        "state": request.state,
        "ended": request.ending is not None,
        "refused": request.refused,
        "verifier": "" if request.verifier is None else request.verifier.member_id,
        "drafter": "" if request.drafter is None else request.drafter.member_id,
        "prompt_tokens": request.particulars.prompt_tokens,
        "tokens": request.tokens,
        "steps": request.speculation.steps,
        "accept_length": round(request.speculation.accept_length, 3),
        "seconds": round(seconds, 2),
    }


def _said(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}

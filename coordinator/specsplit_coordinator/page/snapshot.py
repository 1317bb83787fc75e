"""The cluster as values ready for JSON: who is there, what runs, and the sums from which rates are made."""

from __future__ import annotations

from collections import deque
from typing import Any

from specsplit.build import build
from specsplit.clock import Clock
from specsplit.membership import GroupRank
from specsplit.values import DrafterInfo, Load, ModelInfo, Plan, SpeculationReport
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.orders import Orders
from specsplit_coordinator.members.registry import Registry
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
        self._gone: deque[tuple[MemberState, float]] = deque(maxlen=GONE_KEPT)
        registry.on_gone.append(lambda member: self._gone.append((member, clock.now())))

    def now(self) -> dict[str, Any]:
        """The state of the cluster. Its times are seconds of a clock of which only differences mean something."""
        now = self._clock.now()
        present = {member.member_id for member in self._registry.members}
        late = {member.member_id: member for member, at in self._gone if now - at < GONE_SHOWN_S}
        gone = [member for name, member in late.items() if name not in present]
        verifiers = [*self._registry.verifiers, *(member for member in gone if isinstance(member.who.role, ModelInfo))]
        drafters = [*self._registry.drafters, *(member for member in gone if isinstance(member.who.role, DrafterInfo))]
        requests = self._requests
        return {
            "now": now,
            "model": self._model,
            "build": build(),
            "queued": self._admission.queued,
            "running": self._admission.running,
            "verifiers": [_verifier(member, now) for member in verifiers],
            "drafters": [_drafter(member, now) for member in drafters],
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


def _verifier(member: MemberState, now: float) -> dict[str, Any]:
    assert isinstance(member.who.role, ModelInfo)
    plan: Plan | None = member.plan
    return _member(member, now) | {
        "model": member.who.role.model,
        "adapters": _adapters(member.who.role, member.load),
        "plan": None if plan is None else vars(plan),
        "speculation": None if member.speculation is None else _speculation(member.speculation),
    }


def _adapters(model: ModelInfo, load: Load) -> list[dict[str, Any]]:
    """All that requests may name, with their sessions."""
    used = {each.name: each.sessions for each in load.adapters}
    return [vars(each) | {"sessions": used.get(each.name, 0)} for each in model.adapters]


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


def _drafter(member: MemberState, now: float) -> dict[str, Any]:
    assert isinstance(member.who.role, DrafterInfo)
    return _member(member, now) | {"model": member.who.role.model, "kind": member.who.role.kind.value}


def _member(member: MemberState, now: float) -> dict[str, Any]:
    load = member.load
    return {
        "name": member.member_id,
        "address": member.who.address,
        "build": member.who.build,
        "state": _state(member),
        "why": member.lost_because or "",
        "silent_s": round(now - member.last_seen_at, 2),
        "sessions": load.sessions,
        "waiting": load.waiting,
        "max_sessions": member.who.max_sessions,
        "used_pages": load.total_pages - load.free_pages,
        "total_pages": load.total_pages,
        "steps": load.steps,
        "step_ms": load.step_ms,
        "group": None if member.who.group is None else _rank(member.who.group, member),
    }


def _rank(group: GroupRank, member: MemberState) -> dict[str, Any]:
    """Tell which rank of a group it is, and where that stands; what it does is empty until it has said so."""
    wave = member.wave
    return vars(group) | {
        "wave": 0 if wave is None else wave.number,
        "state": "" if wave is None else wave.state(member.sessions).value,
    }


def _state(member: MemberState) -> str:
    if member.lost_because is not None:
        return "left" if member.leaving else "lost"
    return "draining" if member.leaving else "serving"


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
        "prompt_tokens": request.details.prompt_tokens,
        "tokens": request.tokens,
        "steps": request.speculation.steps,
        "accept_length": round(request.speculation.accept_length, 3),
        "seconds": round(seconds, 2),
    }


def _said(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}

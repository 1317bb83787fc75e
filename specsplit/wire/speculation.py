"""common.proto: who decides how much is speculated, and what that brings."""

from __future__ import annotations

import math
from dataclasses import asdict, fields

from specsplit.errors import InvalidRequest
from specsplit.v1 import common_pb2 as pb
from specsplit.values import Adaptive, Control, DrafterReport, Estimate, Plan, SpeculationReport
from specsplit.wire import common
from specsplit.wire.no_drafts import no_drafts_from_wire, no_drafts_to_wire

MOST_ACCEPTED = 256.0
"""Nodes that a step can accept."""
MOST_SECONDS = 3600.0
"""Seconds for which a drafter can be said to have made a session wait: far more than any session waits for one answer."""


def control_to_wire(control: Control) -> pb.Control:
    """A field that is None is left out."""
    return pb.Control(adaptive=control.adaptive, max_draft_tokens=control.max_draft_tokens)


def control_from_wire(message: pb.Control) -> Control:
    """Absent fields are None. Raises InvalidRequest for a controller that this build does not know, or a bound out of range."""
    return Control(
        adaptive=_adaptive(message.adaptive) if message.HasField("adaptive") else None,
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
    )


def _adaptive(name: str) -> Adaptive:
    try:
        return Adaptive(name)
    except ValueError:
        known = ", ".join(Adaptive)
        raise InvalidRequest("adaptive", f"is {name!r}, expected one of {known}") from None


def report_to_wire(report: SpeculationReport) -> pb.SpeculationReport:
    """Write what a verifier says of its speculation."""
    own = common.fields_of(
        report,
        launched=common.plan_to_wire(report.launched),
        estimate=None if report.estimate is None else pb.Estimate(**asdict(report.estimate)),
        drafters=[pb.DrafterReport(**vars(drafter)) for drafter in report.drafters],
        no_drafts=no_drafts_to_wire(report.no_drafts),
    )
    return pb.SpeculationReport(**own)


def report_from_wire(message: pb.SpeculationReport) -> SpeculationReport:
    """Raises InvalidRequest for a number that no measurement gives, and for a plan that is missing or out of range."""
    if not message.HasField("launched"):
        raise InvalidRequest("speculation.launched", "is missing; expected the plan of the verifier's settings")
    return SpeculationReport(
        adaptive=message.adaptive,
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        launched=common.plan_from_wire(message.launched).over(Plan()),
        accept_length=_measured("accept_length", message.accept_length),
        hit_rate=_measured("hit_rate", message.hit_rate),
        step_s=_measured("step_s", message.step_s),
        token_s=_measured("token_s", message.token_s),
        estimate=_estimate_from_wire(message.estimate) if message.HasField("estimate") else None,
        drafters=tuple(_drafter_from_wire(drafter) for drafter in message.drafters),
        no_drafts=no_drafts_from_wire("speculation.no_drafts", message.no_drafts),
    )


def _estimate_from_wire(message: pb.Estimate) -> Estimate:
    names = [field.name for field in fields(Estimate)]
    return Estimate(**{name: _measured(f"estimate.{name}", getattr(message, name)) for name in names})


def _drafter_from_wire(message: pb.DrafterReport) -> DrafterReport:
    return DrafterReport(
        member_id=message.member_id,
        sessions=message.sessions,
        steps=_measured("drafters.steps", message.steps),
        accepted=_measured("drafters.accepted", message.accepted, MOST_ACCEPTED),
        held_s=_measured("drafters.held_s", message.held_s, MOST_SECONDS),
        round_trip_s=_measured("drafters.round_trip_s", message.round_trip_s, MOST_SECONDS),
        sampled=message.sampled,
        movable=message.movable,
    )


def _measured(field: str, value: float, most: float = math.inf) -> float:
    if not (math.isfinite(value) and 0 <= value <= most):
        expected = "a finite number that is not negative" if most == math.inf else f"0..{most:g}"
        raise InvalidRequest(f"speculation.{field}", f"is {value}, expected {expected}")
    return value

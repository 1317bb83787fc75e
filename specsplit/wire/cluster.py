"""cluster.proto: a member and the coordinator."""

from __future__ import annotations

from typing import TypeAlias

from specsplit.errors import InvalidRequest, Unsupported
from specsplit.membership import (
    AdaptersReport,
    CoordinatorDraining,
    Directive,
    Drain,
    Draining,
    HandOver,
    Heartbeat,
    PlanOrder,
    Register,
    Registered,
    Report,
    Roster,
    StartWave,
    TracingOrder,
    WaveReport,
)
from specsplit.v1 import cluster_pb2 as pb
from specsplit.values import ModelInfo, Plan
from specsplit.wire import common, groups, hosts, speculation, verifier
from specsplit.wire.checks import check
from specsplit.wire.limits import MAX_MEMBERS

ReportMessage: TypeAlias = pb.JoinRequest
DirectiveMessage: TypeAlias = pb.JoinResponse


def report_to_wire(report: Report) -> pb.JoinRequest:
    """Write one report as one message."""
    match report:
        case Register():
            return pb.JoinRequest(register=_register_to_wire(report))
        case Heartbeat():
            return pb.JoinRequest(heartbeat=_heartbeat_to_wire(report))
        case Draining():
            return pb.JoinRequest(draining=pb.DrainingReport())
        case WaveReport():
            return pb.JoinRequest(wave=groups.wave_to_wire(report))
        case AdaptersReport():
            return pb.JoinRequest(adapters=pb.AdaptersReport(adapters=common.adapters_to_wire(report.adapters)))


def report_from_wire(message: pb.JoinRequest) -> Report:
    """Raises InvalidRequest if the report is absent, names no role, or holds a value out of range or too long."""
    check(message)
    match message.WhichOneof("report"):
        case "register":
            return _register_from_wire(message.register)
        case "heartbeat":
            return _heartbeat_from_wire(message.heartbeat)
        case "draining":
            return Draining()
        case "wave":
            return groups.wave_from_wire(message.wave)
        case "adapters":
            return AdaptersReport(common.adapters_from_wire(message.adapters.adapters))
        case _:
            raise InvalidRequest("report", "is absent, expected register, heartbeat, draining, wave or adapters")


_BARE = {"drain": Drain(), "coordinator_draining": CoordinatorDraining()}
"""Directives that hold nothing, by the names of their fields."""


def directive_to_wire(directive: Directive) -> pb.JoinResponse:  # noqa: PLR0911 (one for every directive)
    """Write one directive as one message."""
    match directive:
        case Registered():
            registered = pb.RegisteredDirective(heartbeat_interval_ms=directive.heartbeat_interval_ms)
            return pb.JoinResponse(registered=registered)
        case Roster():
            drafters = [verifier.endpoint_to_wire(endpoint) for endpoint in directive.drafters[:MAX_MEMBERS]]
            return pb.JoinResponse(roster=pb.RosterDirective(drafters=drafters))
        case PlanOrder():
            control = speculation.control_to_wire(directive.control)
            plan = common.plan_to_wire(directive.changes)
            order = pb.PlanDirective(plan=plan, control=control, ordered_ms=directive.ordered_ms)
            return pb.JoinResponse(plan=order)
        case TracingOrder():
            tracing = common.tracing_to_wire(directive.changes)
            return pb.JoinResponse(tracing=pb.TracingDirective(tracing=tracing, ordered_ms=directive.ordered_ms))
        case HandOver():
            return pb.JoinResponse(hand_over=_hand_over_to_wire(directive))
        case StartWave():
            return pb.JoinResponse(start_wave=pb.StartWaveDirective(number=directive.number))
        case Drain():
            return pb.JoinResponse(drain=pb.DrainDirective())
        case CoordinatorDraining():
            return pb.JoinResponse(coordinator_draining=pb.CoordinatorDrainingDirective())


def directive_from_wire(message: pb.JoinResponse) -> Directive:  # noqa: PLR0911 (one for every directive)
    """Raises InvalidRequest if the directive is absent or holds a value out of range or too long, Incompatible if it is none at all.

    Raises Unsupported for one that this version does not know: a member passes it over.
    """
    check(message)
    match message.WhichOneof("directive"):
        case "registered":
            interval_ms = message.registered.heartbeat_interval_ms
            if interval_ms == 0:
                raise InvalidRequest("registered.heartbeat_interval_ms", "is 0, expected at least 1")
            return Registered(interval_ms)
        case "roster":
            return Roster(tuple(verifier.endpoint_from_wire(drafter) for drafter in message.roster.drafters))
        case "plan":
            control = speculation.control_from_wire(message.plan.control)
            return PlanOrder(common.plan_from_wire(message.plan.plan), control, message.plan.ordered_ms)
        case "tracing":
            return TracingOrder(common.tracing_from_wire(message.tracing.tracing), message.tracing.ordered_ms)
        case "hand_over":
            asked = message.hand_over
            target = verifier.endpoint_from_wire(asked.to)
            return HandOver(asked.from_member, target, asked.sessions, asked.sampled, asked.other_kind)
        case "start_wave":
            return StartWave(message.start_wave.number)
        case "drain" | "coordinator_draining" as name:
            return _BARE[name]
        case _ if message.ByteSize():
            raise Unsupported("directive", "is none that this version knows; update this member")
        case _:
            expected = "registered, roster, plan, tracing, hand_over, start_wave, drain or coordinator_draining"
            raise InvalidRequest("directive", f"is absent, expected {expected}")


def _hand_over_to_wire(directive: HandOver) -> pb.HandOverDirective:
    target = verifier.endpoint_to_wire(directive.target)
    return pb.HandOverDirective(
        from_member=directive.source,
        to=target,
        sessions=directive.sessions,
        sampled=directive.sampled,
        other_kind=directive.other_kind,
    )


def _register_to_wire(report: Register) -> pb.RegisterReport:
    message = pb.RegisterReport(
        member_id=report.member_id,
        address=report.address,
        max_sessions=report.max_sessions,
        controllers=report.controllers,
        group=groups.rank_to_wire(report.group),
        build=report.build,
        host=hosts.host_to_wire(report.host),
    )
    if isinstance(report.role, ModelInfo):
        message.verifier.CopyFrom(common.model_to_wire(report.role))
    else:
        message.drafter.CopyFrom(common.drafter_to_wire(report.role))
    return message


def _register_from_wire(message: pb.RegisterReport) -> Register:
    role, controllers = common.role_from_wire(message, "register"), tuple(message.controllers)
    group = groups.rank_from_wire(message.group) if message.HasField("group") else None
    return Register(
        message.member_id,
        message.address,
        role,
        message.max_sessions,
        controllers,
        group,
        message.build,
        hosts.host_from_wire(message.host),
    )


def _heartbeat_to_wire(report: Heartbeat) -> pb.HeartbeatReport:
    return pb.HeartbeatReport(
        load=common.load_to_wire(report.load),
        lost_drafters=report.lost_drafters,
        plan=None if report.plan is None else common.plan_to_wire(report.plan),
        speculation=None if report.speculation is None else speculation.report_to_wire(report.speculation),
        prefixes=report.prefixes,
        weights_version=report.weights_version,
        coordinators=report.coordinators,
        home=report.home,
    )


def _heartbeat_from_wire(message: pb.HeartbeatReport) -> Heartbeat:
    plan = common.plan_from_wire(message.plan).over(Plan()) if message.HasField("plan") else None
    report = speculation.report_from_wire(message.speculation) if message.HasField("speculation") else None
    lost, prefixes = tuple(message.lost_drafters), tuple(message.prefixes)
    weights, coordinators = message.weights_version, message.coordinators
    load = common.load_from_wire(message.load)
    return Heartbeat(load, lost, plan, report, prefixes, weights, coordinators, message.home)

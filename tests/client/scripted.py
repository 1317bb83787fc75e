"""A coordinator that says what a test tells it to, over real gRPC, for clients with and without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from specsplit.engine import MemberUpdated
from specsplit.errors import SpecsplitError, Unavailable
from specsplit.membership import Cluster, Member, PlanInForce, TracingInForce
from specsplit.requests import Delta, Done, GenerateEvent, GenerateRequest
from specsplit.rpc import to_status
from specsplit.v1 import coordinator_pb2_grpc
from specsplit.values import (
    DrafterInfo,
    DrafterKind,
    FinishReason,
    Load,
    ModelInfo,
    PlanChanges,
    SpeculationStatistics,
    TraceChanges,
    Usage,
    Vocabulary,
)
from specsplit.wire import coordinator as wire
from specsplit.wire import weights

MODEL = ModelInfo("toy", Vocabulary(50, "ab"), 512, (0,))
MEMBERS = (
    Member("d1", "127.0.0.1:2", DrafterInfo(DrafterKind.NGRAM, "", None, 512), 8, draining=True),
    Member("v1", "127.0.0.1:1", MODEL, 4, Load(2, 1, 30, 40, 1234, 5.25), silent_ms=70),
)
DONE = Done("r1", FinishReason.STOP, "\n\n", Usage(3, 4, 2), SpeculationStatistics(2, 8, 2, 1, 1), 7, "v1", "d1")
EVENTS = (Delta("one two", (11, 12), 2), Delta(" three", (13,)), Delta("", (14,)), DONE)

Script = Callable[[GenerateRequest], Iterator[GenerateEvent]]


def usual(request: GenerateRequest) -> Iterator[GenerateEvent]:
    """The answer most tests want."""
    yield from EVENTS


def breaking(request: GenerateRequest) -> Iterator[GenerateEvent]:
    """Two tokens, and then nobody."""
    yield Delta("one two", (11, 12), 2)
    raise Unavailable("the coordinator is leaving")


class Health(HealthServicer):
    """Says SERVING, unless it is loading."""

    loading = False

    def Watch(self, request: Any, context: Any, send_response_callback: Any = None) -> Any:  # noqa: N802
        if not self.loading:
            return super().Watch(request, context, send_response_callback)
        send_response_callback(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))
        return send_response_callback(None)


@dataclass
class Scripted(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers, and keeps what it was asked."""

    script: Script = usual
    model: ModelInfo = MODEL
    address: str = ""
    asked: list[GenerateRequest] = field(default_factory=list[GenerateRequest])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    ordered: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    """What set_plan and set_tracing were asked for, each as its parts."""
    plan: PlanInForce = field(default_factory=lambda: PlanInForce(1, PlanChanges()))
    tracing: TracingInForce = field(default_factory=lambda: TracingInForce(2, TraceChanges()))
    members: tuple[Member, ...] = MEMBERS
    ended: threading.Event = field(default_factory=threading.Event)
    health: Health = field(default_factory=Health)

    def loads(self) -> None:
        """From now on it serves nobody, and ends every watch of its health with that."""
        self.health.loading = True

    def Generate(self, request: wire.GenerateMessage, context: Any) -> Iterator[wire.GenerateEventMessage]:  # noqa: N802
        context.add_callback(self.ended.set)
        self.headers.append(dict(context.invocation_metadata()))
        try:
            self.asked.append(wire.generate_from_wire(request))
            for event in self.script(self.asked[-1]):
                yield wire.generate_response(event)
        except SpecsplitError as error:
            context.abort_with_status(to_status(error))

    def GetModelInfo(self, request: wire.ModelInfoQuestion, context: Any) -> wire.ModelInfoMessage:  # noqa: N802
        return wire.model_info_to_wire(self.model)

    def GetCluster(self, request: wire.ClusterQuestion, context: Any) -> wire.ClusterMessage:  # noqa: N802
        return wire.cluster_to_wire(Cluster(self.members, queued=3, running=2, failovers=5, preemptions=7))

    def GetPlan(self, request: wire.PlanQuestion, context: Any) -> wire.PlanInForceMessage:  # noqa: N802
        return wire.plan_in_force_to_wire(self.plan)

    def GetTracing(self, request: wire.TracingQuestion, context: Any) -> wire.TracingInForceMessage:  # noqa: N802
        return wire.tracing_in_force_to_wire(self.tracing)

    def SetPlan(self, request: wire.PlanMessage, context: Any) -> wire.PlanSetMessage:  # noqa: N802
        changes, control, reset = wire.set_plan_from_wire(request)
        self.ordered.append((changes, control, reset))
        self.plan = PlanInForce(1, changes, control)
        return wire.plan_set_to_wire(self.plan)

    def SetTracing(self, request: wire.TracingMessage, context: Any) -> wire.TracingSetMessage:  # noqa: N802
        changes, reset = wire.set_tracing_from_wire(request)
        self.ordered.append((changes, reset))
        self.tracing = TracingInForce(2, changes)
        return wire.tracing_set_to_wire(self.tracing)

    def UpdateWeights(self, request: weights.UpdateMessage, context: Any) -> weights.UpdatedMessage:  # noqa: N802
        wanted, member_id, _ = weights.update_from_wire(request)
        return weights.updated_to_wire([MemberUpdated(2, f"{wanted.folder} is taken", member_id or "v1")])


@contextmanager
def serving() -> Iterator[Scripted]:
    """A scripted coordinator on a free port."""
    scripted = Scripted()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(scripted, server)
        scripted.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        scripted.health.set("", HealthCheckResponse.SERVING)
        add_HealthServicer_to_server(scripted.health, server)  # pyright: ignore[reportUnknownMemberType]
        server.start()
        try:
            yield scripted
        finally:
            server.stop(0).wait()

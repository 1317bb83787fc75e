"""The edges: parse, one call, serialise."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from specsplit.errors import Exhausted, Unavailable
from specsplit.generation.contexts import at_end
from specsplit.generation.delivery import Delivery
from specsplit.membership import Cluster, Heartbeat, PlanInForce, Register, Registered, Report, TracingInForce
from specsplit.observe import fields
from specsplit.requests import Delta, GenerateEvent
from specsplit.rpc import Context
from specsplit.v1 import cluster_pb2_grpc, coordinator_pb2_grpc
from specsplit.values import ModelInfo
from specsplit.wire import cluster as cluster_wire
from specsplit.wire import coordinator as wire
from specsplit.wire import weights
from specsplit.wire.limits import MAX_MEMBERS
from specsplit_coordinator.cluster.join_stream import LEAVING, JoinStream, registration
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.edge.weights import WeightsUpdater
from specsplit_coordinator.members.compatibility import check_controller
from specsplit_coordinator.members.order_log import log_change
from specsplit_coordinator.members.orders import Orders
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.generation import Generator

_log = logging.getLogger(__name__)


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Serves programs: requests, and what an operator asks for."""

    def __init__(
        self,
        generator: Generator,
        registry: Registry,
        cluster: Callable[[], Cluster],
        orders: Orders,
        delivery: Delivery,
        weights_updater: WeightsUpdater,
    ) -> None:
        self._generator = generator
        self._registry = registry
        self._cluster = cluster
        self._orders = orders
        self._delivery = delivery
        self._weights = weights_updater

    async def Generate(  # noqa: N802 (the name is the protocol's)
        self, request: wire.GenerateMessage, context: Context
    ) -> AsyncGenerator[wire.GenerateEventMessage, None]:
        """Stream the deltas of every choice, and then its end."""
        asked = self._delivery.read(wire.generate_from_wire, request)
        async with contextlib.aclosing(self._delivery.answer(asked, context, _responses)) as messages:
            async for message in messages:
                yield message

    async def GetModelInfo(  # noqa: N802
        self, request: wire.ModelInfoQuestion, context: Context
    ) -> wire.ModelInfoMessage:
        """Tell what the verifiers serve, and whether conversations are taken."""
        return wire.model_info_to_wire(self._generator.model())

    async def GetCluster(  # noqa: N802
        self, request: wire.ClusterQuestion, context: Context
    ) -> wire.ClusterMessage:
        """Tell who is there, how many requests wait and run, and what happened to sessions so far."""
        return wire.cluster_to_wire(self._cluster())

    async def GetPlan(  # noqa: N802
        self, request: wire.PlanQuestion, context: Context
    ) -> wire.PlanInForceMessage:
        """Tell what is changed about the plan, and for how many."""
        return wire.plan_in_force_to_wire(self._plan_in_force())

    async def GetTracing(  # noqa: N802
        self, request: wire.TracingQuestion, context: Context
    ) -> wire.TracingInForceMessage:
        """Tell what is changed about what everybody traces, and for how many."""
        return wire.tracing_in_force_to_wire(self._tracing_in_force())

    async def SetPlan(  # noqa: N802
        self, request: wire.PlanMessage, context: Context
    ) -> wire.PlanSetMessage:
        """Change the default plan of every verifier, and who decides about it."""
        changes, control, reset = wire.set_plan_from_wire(request)
        check_controller(control, self._registry.verifiers)
        changed = self._orders.change_plan(changes, control, reset=reset)
        in_force = self._plan_in_force()
        log_change("plan", changed, in_force.members, context)
        return wire.plan_set_to_wire(in_force)

    async def SetTracing(  # noqa: N802
        self, request: wire.TracingMessage, context: Context
    ) -> wire.TracingSetMessage:
        """Change what everybody traces."""
        changes, reset = wire.set_tracing_from_wire(request)
        changed = self._orders.change_tracing(changes, reset=reset)
        in_force = self._tracing_in_force()
        log_change("tracing", changed, in_force.members, context)
        return wire.tracing_set_to_wire(in_force)

    async def UpdateWeights(  # noqa: N802
        self, request: weights.UpdateMessage, context: Context
    ) -> weights.UpdatedMessage:
        """Have verifiers or drafters go on with other weights of their models."""
        return weights.updated_to_wire(await self._weights.update(*weights.update_from_wire(request)))

    def _plan_in_force(self) -> PlanInForce:
        return PlanInForce(len(self._registry.verifiers), self._orders.plan, self._orders.control)

    def _tracing_in_force(self) -> TracingInForce:
        return TracingInForce(len(self._registry.members), self._orders.tracing)


def _responses(event: GenerateEvent, earlier: Sequence[Delta]) -> Iterable[wire.GenerateEventMessage]:
    return (wire.generate_response(event, earlier),)


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """Serves members: their Join streams."""

    def __init__(
        self,
        registry: Registry,
        rosters: Rosters,
        orders: Orders,
        heartbeat_ms: int,
        check_verifier: Callable[[str], None],
    ) -> None:
        """`check_verifier` raises InvalidRequest for an address that this coordinator may not dial."""
        self._check_verifier = check_verifier
        self._registry = registry
        self._rosters = rosters
        self._orders = orders
        self._heartbeat_ms = heartbeat_ms
        self._streams: set[JoinStream] = set()
        self._draining = self._leaving = False

    def drain(self) -> None:
        """The coordinator takes no more requests: have members count it no more, so that others get its part of quotas and members."""
        self._draining = True
        for stream in self._streams:
            stream.drain()

    def dismiss(self) -> None:
        """The coordinator leaves: end every stream with a word, so that stopping the server cuts none off, and take no more."""
        self._leaving = True
        for stream in self._streams:
            stream.dismiss()

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_wire.ReportMessage], context: Context
    ) -> AsyncGenerator[cluster_wire.DirectiveMessage, None]:
        """Stream directives for as long as the member is there."""
        reports = _reports(request_iterator)
        member = self._registry.register(self._admitted(await registration(reports, self._registry.lost_after_s)))
        _log.info("member joined", extra=fields(member_id=member.member_id, address=member.who.address))
        if member.is_verifier and not member.knows(self._orders.control):
            _log.warning(
                "a verifier cannot be told to use the controller in force, and keeps its own",
                extra=fields(member_id=member.member_id, adaptive=self._orders.control.wanted),
            )
        if member.adapters and (unasked := member.adapters.difference(self._registry.model().adapters)):
            _log.warning(
                "a verifier has other adapters than the rest under their names, and is asked for none of these until it is updated",
                extra=fields(member_id=member.member_id, adapters=sorted(each.name for each in unasked)),
            )
        stream = JoinStream(self._registry, self._rosters, self._orders, member, reports)
        self._streams.add(stream)
        if self._draining:
            stream.drain()
        at_end(context, partial(self._close, stream))
        try:
            yield cluster_wire.directive_to_wire(Registered(self._heartbeat_ms))
            async for directive in stream.directives():
                yield cluster_wire.directive_to_wire(directive)
        finally:
            self._close(stream)

    def _admitted(self, who: Register) -> Register:
        if self._leaving:
            raise Unavailable(LEAVING)
        if len(self._streams) >= MAX_MEMBERS:
            raise Exhausted(
                f"the cluster has {MAX_MEMBERS:,} members, as many as it can have; stop one before another joins"
            )
        if isinstance(who.role, ModelInfo):
            self._check_verifier(who.address)
        return who

    def _close(self, stream: JoinStream) -> None:
        self._streams.discard(stream)
        stream.close("its stream ended")


async def _reports(messages: AsyncIterator[cluster_wire.ReportMessage]) -> AsyncGenerator[Report, None]:
    """What a member says. An idle one says the same with every heartbeat: such a message is compared with the last, and not read again."""
    last: cluster_wire.ReportMessage | None = None
    report: Report = Heartbeat()
    async for message in messages:
        if message != last:
            last, report = message, cluster_wire.report_from_wire(message)
        yield report

"""The coordinator process: it makes the parts and connects them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from specsplit.clock import SystemClock
from specsplit.errors import Unavailable
from specsplit.generation.delivery import Delivery
from specsplit.generation.gathering import Gathering
from specsplit.generation.preparation import RandomSources
from specsplit.interpreter import freeze_heap
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.rpc import (
    CLUSTER_SERVICE,
    COORDINATOR_SERVICE,
    VLLM_ENGINE_SERVICE,
    Phase,
    Server,
    Service,
    check_reachable,
    run_service,
)
from specsplit.settings import CoordinatorSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.v1 import cluster_pb2_grpc, coordinator_pb2_grpc
from specsplit.vllm_engine.servicer import VllmEngineServicer
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.rebalancer import Rebalancer
from specsplit_coordinator.cluster.roster_updater import RosterUpdater
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.edge.cluster_status import ClusterStatus
from specsplit_coordinator.edge.engine import CoordinatorEngine
from specsplit_coordinator.edge.servicers import ClusterServicer, CoordinatorServicer
from specsplit_coordinator.edge.telemetry import subscribe
from specsplit_coordinator.edge.weights import WeightsUpdater
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.orders import Orders
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_client import VerifierClient
from specsplit_coordinator.page.server import PageServer
from specsplit_coordinator.page.snapshot import ClusterSnapshot
from specsplit_coordinator.page.watching import watch
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.caps import Caps, tell_small_queue
from specsplit_coordinator.requests.generation import Generator
from specsplit_coordinator.requests.maintenance import Maintenance
from specsplit_coordinator.requests.quota_store import LEASE_S, QuotaStore
from specsplit_coordinator.requests.quotas import Quota, Quotas
from specsplit_coordinator.requests.request_log import RequestLog
from specsplit_coordinator.requests.run import ClusterAccess


def main(settings: CoordinatorSettings) -> int:
    """Run the coordinator in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    return run_service("coordinator", settings, lambda settings: Coordinator(settings).service)


class Coordinator:
    """The parts of a coordinator and their connections. To be made on its event loop; `service` starts and stops it."""

    def __init__(self, settings: CoordinatorSettings, random: RandomSources | None = None) -> None:
        """Reads the tokenizer. Raises LoadError, and Unavailable as `Server` does."""
        tell_small_queue(settings)
        tokenizer, clock, server = Tokenizer.load(settings.model), SystemClock(), _server(settings)
        self.registry = Registry(tokenizer.vocabulary, clock, settings.lost_after_ms / 1000)
        quota, coordinators = Quota.of(settings), lambda: self.registry.coordinators
        store = quota_store(settings, quota, coordinators)
        quotas = Quotas(quota, clock, settings.retry_after_s, coordinators, store)
        self.admission = Admission(
            self.registry, settings.max_queue, settings.retry_after_s, settings.failover_s, quotas
        )
        self.orders = Orders()
        self.requests = RequestLog(clock, server.tracing)
        status = ClusterStatus(self.registry, self.admission, self.requests, quotas)
        self.metrics = CoordinatorMetrics(on=bool(settings.metrics_listen), clients=settings.named_clients)
        self.metrics.watch(status.now)
        if store is not None:
            self.metrics.watch_quota_store(lambda: not store.trouble)
        if settings.vllm_metrics:
            self.metrics.under_vllm_names(tokenizer.model)
        self.failed = asyncio.Event()
        """Never set: a coordinator has no thread that could die."""
        self._open = AsyncExitStack()
        """What has to be closed at the end."""
        gathering, scorer = Gathering(settings.gather_ms / 1000), DrafterScorer(self.registry, clock)
        client = VerifierClient(settings, server.tracing, gathering)
        self._open.push_async_callback(client.close)
        cluster = ClusterAccess(self.registry, self.admission, client, DrafterPlacement(scorer), tokenizer.vocabulary)
        generator = Generator(tokenizer, cluster, random or RandomSources(), self.requests, Caps.of(settings), quotas)
        self._open.callback(generator.close)
        self._delivery = Delivery(generator, max_unread_bytes=settings.max_unread_bytes, unread_s=settings.unread_s)
        updater = WeightsUpdater(self.registry, client)
        programs = CoordinatorServicer(generator, self.registry, status.now, self.orders, self._delivery, updater)
        engine = CoordinatorEngine(self.registry, client, status.now, server)
        gateways = partial(VllmEngineServicer, self._delivery, max_message_bytes=settings.max_message_bytes)
        gateways = partial(gateways, folder=settings.model, clock=clock)
        for name, port in server.adapters.items():
            gateways(engine.with_adapter(name), adapter=name).add_to(port.grpc)
        self._members = self._for_members(settings, scorer)
        snapshot = ClusterSnapshot(tokenizer.model, self.registry, self.admission, self.requests, self.orders, clock)
        self.page = PageServer(settings.web_listen, snapshot.now, partial(watch, tokenizer, client, self.requests))
        rebalancer = Rebalancer(self.registry, scorer, self.admission.leases, clock)
        maintenance = Maintenance(self.registry, self.admission, rebalancer)
        tasks = [maintenance.run, self._roster_updater.run]
        tasks += [] if store is None else [partial(store.run, self.admission)]
        self.service = Service(settings, server, self.metrics, partial(self._load, tasks))
        self._wire(programs, gateways(engine))

    def _for_members(self, settings: CoordinatorSettings, scorer: DrafterScorer) -> ClusterServicer:
        rosters = Rosters(self.registry, scorer)
        self._roster_updater = RosterUpdater(self.registry, rosters)
        reachable = partial(check_reachable, "register.address", settings=settings)
        return ClusterServicer(self.registry, rosters, self.orders, settings.heartbeat_ms, reachable)

    def _wire(self, programs: CoordinatorServicer, gateways: VllmEngineServicer) -> None:
        """Subscribe the parts to one another, and add the servicers to the server."""
        tracing, orders = self.service.server.tracing, self.orders
        orders.subscribe(lambda: tracing.apply(orders.tracing))
        subscribe(self.requests, self.metrics)
        self.registry.on_gone.append(self._gone)
        server = self.service.server
        for port in dict.fromkeys((server.grpc, server.members)):
            coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(programs, port)
            gateways.add_to(port)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self._members, server.members)

    async def _load(self, tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> Coordinator:
        await self.page.start()
        self._open.push_async_callback(self.page.stop)
        for run in tasks:
            self._open.push_async_callback(_ended, asyncio.create_task(run()))
        freeze_heap()
        return self

    async def stop(self) -> None:
        """End every call at once."""
        self._members.dismiss()
        await self.service.stop()

    async def drained(self) -> None:
        """Wait until all requests have finished and their answers are read, then end the Join streams."""
        self._members.drain()
        try:
            await self.admission.idle()
            await self._delivery.delivered()
        finally:
            self._members.dismiss()

    async def close(self) -> None:
        """End everything but the server."""
        await self._open.aclose()

    def _gone(self, member: MemberState) -> None:
        """Count a member that went without draining as lost, unless this process itself is leaving."""
        if not member.leaving and self.service.server.phase is Phase.SERVING:
            self.metrics.member_lost(member.who.role)


def quota_store(settings: CoordinatorSettings, quota: Quota, coordinators: Callable[[], int]) -> QuotaStore | None:
    """The store that the settings name; None if they name none. Raises Unavailable if what it needs is not installed."""
    if not settings.quota_store:
        return None
    try:
        from specsplit_coordinator.requests.quota_server import QuotaServer  # noqa: PLC0415 (nothing of it is loaded without a store)
    except ModuleNotFoundError as error:
        hint = "install what it needs with: pip install 'specsplit[quota]'"
        raise Unavailable(f"quota_store is set, and the store cannot be used: {error}; {hint}") from error
    server = QuotaServer(settings, quota, LEASE_S)
    return QuotaStore(server, coordinators, settings.quota_store_timeout_ms / 1000, queued=quota.queued is not None)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _server(settings: CoordinatorSettings) -> Server:
    return Server(
        settings,
        "coordinator",
        services=(COORDINATOR_SERVICE, CLUSTER_SERVICE, VLLM_ENGINE_SERVICE),
        session_methods=("Generate",),
        members_listen=settings.members_listen,
        adapter_listens=settings.adapter_listens,
    )

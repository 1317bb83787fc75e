"""The coordinator process, put together."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from specsplit.clock import SystemClock
from specsplit.interpreter import freeze_heap
from specsplit.membership import Cluster
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, Phase, Server, Service, check_reachable, run_service
from specsplit.settings import CoordinatorSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.v1 import cluster_pb2_grpc, coordinator_pb2_grpc
from specsplit_coordinator.admission import Admission
from specsplit_coordinator.balance import Balance
from specsplit_coordinator.caps import Caps
from specsplit_coordinator.dialler import Dialler
from specsplit_coordinator.generation import Draws, Generator
from specsplit_coordinator.orders import Orders
from specsplit_coordinator.page.server import PageServer
from specsplit_coordinator.page.snapshot import ClusterSnapshot
from specsplit_coordinator.page.watching import watch
from specsplit_coordinator.placement import DrafterPlacement
from specsplit_coordinator.quotas import Quota, Quotas
from specsplit_coordinator.rebalancer import Rebalancer
from specsplit_coordinator.registry import Registry
from specsplit_coordinator.request_log import RequestLog
from specsplit_coordinator.rosters import Rosters
from specsplit_coordinator.seat import Seat
from specsplit_coordinator.servicers import ClusterServicer, CoordinatorServicer
from specsplit_coordinator.sweeper import sweep
from specsplit_coordinator.telemetry import tell

_SEED_BITS = 53
"""Drawn seeds fit a JSON number, so that every reader can give them back unchanged."""


def main(settings: CoordinatorSettings) -> int:
    """Run the coordinator in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    return run_service("coordinator", settings, lambda settings: Coordinator(settings).service)


class Coordinator:
    """The parts and their wiring. To be made on the event loop that it lives on; `service` is its life."""

    def __init__(self, settings: CoordinatorSettings, draws: Draws | None = None) -> None:
        """Reads the tokenizer. Raises LoadError, and Unavailable as `Server` does."""
        tokenizer, clock = Tokenizer.load(settings.model), SystemClock()
        draws = draws or Draws(lambda: secrets.randbits(_SEED_BITS), lambda: uuid.uuid4().hex)
        services = (COORDINATOR_SERVICE, CLUSTER_SERVICE)
        server = Server(
            settings,
            "coordinator",
            services=services,
            session_methods=("Generate",),
            members_listen=settings.members_listen,
        )
        tracing = server.tracing
        self.registry = Registry(tokenizer.vocabulary, clock, settings.lost_after_ms / 1000)
        quotas = Quotas(Quota.of(settings), clock, settings.retry_after_s)
        self.admission = Admission(
            self.registry, settings.max_queue, settings.retry_after_s, settings.failover_s, quotas
        )
        self.orders = Orders()
        self.requests = RequestLog(clock, tracing)
        self.metrics = CoordinatorMetrics(on=bool(settings.metrics_listen), clients=settings.named_clients)
        dialler = Dialler(settings, tracing)
        balance = Balance(self.registry, clock)
        generator = Generator(
            tokenizer,
            self.registry,
            self.admission,
            dialler,
            draws,
            self.requests,
            Caps.of(settings),
            DrafterPlacement(balance),
            quotas,
        )
        self._programs = CoordinatorServicer(
            generator,
            self.registry,
            self._cluster,
            self.orders,
            max_unread_bytes=settings.max_unread_bytes,
            unread_s=settings.unread_s,
        )
        rosters = Rosters(self.registry, balance)
        self._members = ClusterServicer(
            self.registry,
            rosters,
            self.orders,
            settings.heartbeat_ms,
            lambda address: check_reachable("register.address", address, settings),
        )
        snapshot = ClusterSnapshot(tokenizer.model, self.registry, self.admission, self.requests, self.orders, clock)
        self.page = PageServer(settings.web_listen, snapshot.now, partial(watch, tokenizer, dialler, self.requests))
        self.failed = asyncio.Event()
        """Never set: nothing of it runs on a thread that could die."""
        self._open = AsyncExitStack()
        """What has to be closed at the end."""
        self._open.callback(generator.close)
        self._open.push_async_callback(dialler.close)
        rebalancer = Rebalancer(self.registry, balance, self.admission, clock)
        sweeping = partial(sweep, self.registry, self.admission, rebalancer, clock, settings.lost_after_ms / 1000)
        self.service = Service(settings, server, self.metrics, partial(self._load, sweeping))
        self._wire()

    def _wire(self) -> None:
        """Connect the parts: who is told of what."""
        tracing, orders = self.service.server.tracing, self.orders
        orders.watch(lambda: tracing.apply(orders.tracing))
        tell(self.requests, self.metrics)
        self.metrics.watch(self._cluster)
        self.registry.on_gone.append(self._gone)
        server = self.service.server
        for port in dict.fromkeys((server.grpc, server.members)):
            coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(self._programs, port)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self._members, server.members)

    async def _load(self, sweeping: Callable[[], Coroutine[Any, Any, None]]) -> Coordinator:
        await self.page.start()
        self._open.push_async_callback(self.page.stop)
        sweeper = asyncio.create_task(sweeping())
        self._open.callback(sweeper.cancel)
        freeze_heap()
        return self

    async def stop(self) -> None:
        """End every call at once."""
        self._members.dismiss()
        await self.service.stop()

    async def drained(self) -> None:
        """Waiting and running requests finish, and their answers are read; then the members are told."""
        try:
            await self.admission.idle()
            await self._programs.delivered()
        finally:
            self._members.dismiss()

    async def close(self) -> None:
        """End what runs beside the server."""
        await self._open.aclose()

    def _cluster(self) -> Cluster:
        totals = self.requests.totals
        return Cluster(
            self.registry.members, self.admission.queued, self.admission.running, totals.failovers, totals.preemptions
        )

    def _gone(self, seat: Seat) -> None:
        """A member that went without a word is lost, unless it is this process that leaves."""
        if not seat.leaving and self.service.server.phase is Phase.SERVING:
            self.metrics.member_lost(seat.who.role)

"""The coordinator process, put together."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from specsplit.clock import SystemClock
from specsplit.interpreter import freeze_heap
from specsplit.membership import Cluster
from specsplit.observe import announce, fields, set_up
from specsplit.observe.exposition import expose
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, Phase, Server
from specsplit.settings import CoordinatorSettings
from specsplit.text.tokenizer import Tokenizer
from specsplit.v1 import cluster_pb2_grpc, coordinator_pb2_grpc
from specsplit_coordinator.account import Books
from specsplit_coordinator.admission import Admission
from specsplit_coordinator.caps import Caps
from specsplit_coordinator.dialler import Dialler
from specsplit_coordinator.generation import Draws, Generator
from specsplit_coordinator.ledger import Ledger
from specsplit_coordinator.orders import Orders
from specsplit_coordinator.page.server import PageServer
from specsplit_coordinator.page.snapshot import ClusterSnapshot
from specsplit_coordinator.page.watching import Snapshot, Watch
from specsplit_coordinator.registry import Registry, Seat
from specsplit_coordinator.servicers import ClusterServicer, CoordinatorServicer

_log = logging.getLogger(__name__)

_SEED_BITS = 53
"""Drawn seeds fit a JSON number, so that every reader can give them back unchanged."""


def main(settings: CoordinatorSettings) -> int:
    """Run until SIGTERM; the exit status. Raises SpecsplitError if it cannot start."""
    set_up("coordinator", settings.log_level, settings.log_format)
    announce("coordinator", settings)
    return asyncio.run(Coordinator(settings).run())


class Coordinator:
    """The parts and their wiring. Lives on one event loop: `start`, then `run` or `stop`."""

    def __init__(self, settings: CoordinatorSettings, draws: Draws | None = None) -> None:
        """Reads the tokenizer. Raises LoadError."""
        self._settings = settings
        self._clock = SystemClock()
        self._tokenizer = Tokenizer.load(settings.model)
        self._draws = draws or Draws(lambda: secrets.randbits(_SEED_BITS), lambda: uuid.uuid4().hex)
        self.registry = Registry(self._tokenizer.vocabulary, self._clock, settings.lost_after_ms / 1000)
        self.admission = Admission(self.registry, settings.max_queue, settings.retry_after_s)
        self.orders = Orders()
        self.ledger = Ledger()
        self.metrics = CoordinatorMetrics(on=bool(settings.metrics_listen))
        self.metrics_address = ""
        """host:port of the metrics as bound; empty if nobody can scrape them."""
        self._exposed = ExitStack()
        snapshot = ClusterSnapshot(
            self._tokenizer.model, self.registry, self.admission, self.ledger, self.orders, self._clock
        )
        self.page = PageServer(settings.web_listen, snapshot.now, self._watch)
        self._members = ClusterServicer(self.registry, self.orders, settings.heartbeat_ms)
        self._dialler: Dialler | None = None
        self._generator: Generator | None = None
        self._programs: CoordinatorServicer | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._server: Server | None = None

    async def start(self) -> str:
        """Listen and take calls; return host:port."""
        self._server = server = Server(
            self._settings,
            "coordinator",
            services=(COORDINATOR_SERVICE, CLUSTER_SERVICE),
            session_methods=("Generate", "Join"),
        )
        tracing = server.tracing
        self.orders.watch(lambda: tracing.apply(self.orders.tracing))
        self._dialler = Dialler(self._settings, tracing)
        self.metrics.watch(self._cluster)
        self.registry.on_gone.append(self._gone)
        books = Books(tracing, self.metrics, self.ledger, self._clock)
        self._generator = Generator(
            self._tokenizer,
            self.registry,
            self.admission,
            self._dialler,
            self._draws,
            books,
            Caps.of(self._settings),
        )
        self._programs = CoordinatorServicer(
            self._generator,
            self.registry,
            self.admission,
            self.orders,
            max_unread_bytes=self._settings.max_unread_bytes,
            unread_s=self._settings.unread_s,
        )
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(self._programs, server.grpc)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self._members, server.grpc)
        self.metrics_address = self._exposed.enter_context(expose(self.metrics, self._settings.metrics_listen))
        await self.page.start()
        address = await server.start()
        self._sweeper = asyncio.create_task(self._sweep())
        freeze_heap()
        server.ready()
        return address

    async def run(self) -> int:
        """Start, then serve until SIGTERM. The exit status."""
        await self.start()
        return await self.serve()

    async def serve(self, *, signals: bool = True) -> int:
        """After `start`: serve until SIGTERM or `leave`, then drain (waiting and running requests finish). The exit status."""
        assert self._server is not None
        try:
            return await self._server.run(self._drain, signals=signals)
        finally:
            await self._tidy()

    def leave(self) -> None:
        """Begin to drain, as SIGTERM does."""
        assert self._server is not None
        self._server.leave()

    async def stop(self) -> None:
        """End every call at once."""
        self._members.dismiss()
        if self._server is not None:
            await self._server.stop()
        await self._tidy()

    async def _drain(self) -> None:
        """Waiting and running requests finish, and their answers are read; then the members are told."""
        try:
            await self.admission.idle()
            if self._programs is not None:
                await self._programs.delivered()
        finally:
            self._members.dismiss()

    def _cluster(self) -> Cluster:
        return Cluster(self.registry.members, self.admission.queued, self.admission.running)

    def _watch(self, number: int) -> AsyncGenerator[Snapshot, None] | None:
        """The snapshots of a request for the page."""
        entry = self.ledger.find(number)
        if entry is None or self._dialler is None:
            return None
        return Watch(self._tokenizer, self._dialler, entry).snapshots()

    def _gone(self, seat: Seat) -> None:
        """A member that went without a word is lost, unless it is this process that leaves."""
        if not seat.draining and self._server is not None and self._server.phase is Phase.SERVING:
            self.metrics.member_lost(seat.who.role)

    async def _tidy(self) -> None:
        await self.page.stop()
        await asyncio.to_thread(self._exposed.close)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._dialler is not None:
            await self._dialler.close()
        if self._generator is not None:
            self._generator.close()

    async def _sweep(self) -> None:
        """Look for silent members, several times within the time one may be silent, and for verifiers that have cooled down."""
        while True:
            due = self._clock.now() + self._settings.lost_after_ms / 5000
            await asyncio.sleep(due - self._clock.now())
            for seat in self.registry.sweep(late_s=max(0.0, self._clock.now() - due)):
                _log.warning("member lost", extra=fields(member_id=seat.member_id, why=seat.lost_because))
            self.admission.serve_waiting()

"""A drafter as a process: it loads its model, and joins the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc

from specsplit.clock import SystemClock
from specsplit.errors import LoadError
from specsplit.interpreter import freeze_heap, switch_often
from specsplit.rpc import DRAFTER_SERVICE, Membership, Server, Service, registration, run_service
from specsplit.settings import DrafterSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit_drafter.engine import Engine, Outbox
from specsplit_drafter.ngram import NgramProposer
from specsplit_drafter.proposer import Proposer
from specsplit_drafter.servicer import DrafterServicer
from specsplit_drafter.session_table import Pace, SessionTable, TableLimits, unpaced
from specsplit_drafter.telemetry import Telemetry


def main(settings: DrafterSettings) -> int:
    """Run one drafter in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    switch_often()  # two threads hand each other small things all the time
    return run_service("drafter", settings, service_of)


def service_of(settings: DrafterSettings) -> Service[Drafter]:
    """The drafter's process, put together."""
    server = Server(settings, "drafter", services=[DRAFTER_SERVICE], session_methods=["Draft"])
    telemetry = Telemetry(settings, server.tracing)
    servicer = DrafterServicer(telemetry, settings.max_message_bytes)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)

    async def load() -> Drafter:
        table = await asyncio.to_thread(load_table, settings)
        table.rounds = telemetry.rounds()
        drafter = Drafter(table, servicer)
        servicer.engine = drafter.engine
        telemetry.watch(drafter.engine.statistics)
        return drafter

    def join(drafter: Drafter, channel: grpc.aio.Channel) -> Membership:
        register = registration(settings, "drafter", server, drafter.engine.info)
        apply = server.tracing.apply
        return Membership(channel, register, drafter.engine.load, on_drain=server.leave, on_tracing=apply)

    return Service(settings, server, telemetry.metrics, load, join)


class Drafter:
    """The engine thread, as the event loop sees it."""

    def __init__(self, table: SessionTable, outbox: Outbox) -> None:
        """Starts the thread."""
        self.failed = asyncio.Event()
        """Set if the engine thread died: a drafter without one must not go on saying SERVING."""
        self._loop = asyncio.get_running_loop()
        self.engine = Engine(table, SystemClock(), outbox, lambda: self._set(self.failed))
        self.engine.start()

    async def drained(self) -> None:
        """Take no new sessions, and wait for the running ones; those that are left when the time is up are handed back."""
        if self.failed.is_set():
            return
        idle = asyncio.Event()
        self.engine.drain(lambda: self._set(idle))
        try:
            await idle.wait()
        except asyncio.CancelledError:
            self.engine.hand_back()
            await self.close()  # their verifiers are told, and their spans made, before the server ends
            raise

    async def close(self) -> None:
        """End the engine thread. A second call does nothing."""
        await asyncio.to_thread(self.engine.stop)

    def _set(self, event: asyncio.Event) -> None:
        """Set an event of the loop from another thread."""
        self._loop.call_soon_threadsafe(event.set)


def load_table(settings: DrafterSettings) -> SessionTable:
    """Make the proposer of these settings, with no sessions yet. Takes as long as loading the model does. Raises LoadError."""
    limits = TableLimits(settings.max_sessions, settings.expand_width, settings.node_us)
    table = SessionTable(load_proposer(settings), limits, _pace(settings))
    freeze_heap()
    return table


def load_proposer(settings: DrafterSettings) -> Proposer:
    """Load what proposes under these settings. Raises LoadError."""
    if not settings.kind.needs_model:
        return NgramProposer(settings.children)
    if settings.model is None:
        raise LoadError(f"a drafter of kind {settings.kind.value} needs a model folder (model)")
    # An ngram drafter runs without torch: these imports take seconds.
    import torch  # noqa: PLC0415

    torch.set_num_threads(settings.threads)
    if settings.kind.is_head:
        return _load_head(settings, settings.model)
    from specsplit.model import CausalLM  # noqa: PLC0415
    from specsplit_drafter.model_proposer import ModelProposer  # noqa: PLC0415
    from specsplit_drafter.standalone import StandaloneModel  # noqa: PLC0415

    model = CausalLM.load(
        settings.model,
        num_pages=settings.kv_tokens,
        page_size=1,
        dtype=settings.dtype,
        device=settings.device,
        backend=settings.attention,
    )
    return ModelProposer(StandaloneModel(model), settings.children)


def _load_head(settings: DrafterSettings, folder: Path) -> Proposer:
    from specsplit.model.heads import load_head, projected  # noqa: PLC0415
    from specsplit_drafter.heads import HeadModel  # noqa: PLC0415
    from specsplit_drafter.model_proposer import ModelProposer  # noqa: PLC0415

    if settings.target is None:
        raise LoadError(
            f"a drafter of kind {settings.kind.value} needs the folder of the target it was made for (target)"
        )
    head = load_head(folder, settings.target, settings.kind, dtype=settings.dtype, device=settings.device)
    need = replace(head.shape.need, format=settings.feature_format)
    if settings.feature_projection:
        need = projected(need, folder)
    return ModelProposer(HeadModel(head, settings.kv_tokens, need, settings.attention), settings.children)


def _pace(settings: DrafterSettings) -> Pace:
    if not settings.paced_expansion_base_ms and not settings.paced_expansion_per_token_us:
        return unpaced
    from specsplit.model import CostCurve, Paced  # noqa: PLC0415

    curve = CostCurve(settings.paced_expansion_base_ms, settings.paced_expansion_per_token_us)
    return Paced(curve, SystemClock()).step

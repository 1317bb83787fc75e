"""A drafter as a process: loads its model, listens, joins the cluster, drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from specsplit.clock import SystemClock
from specsplit.errors import LoadError
from specsplit.interpreter import freeze_heap, switch_often
from specsplit.membership import Register
from specsplit.observe import announce, set_up
from specsplit.rpc import DRAFTER_SERVICE, Membership, Server, dial, member_id_of
from specsplit.settings import DrafterSettings
from specsplit.v1 import drafter_pb2_grpc
from specsplit_drafter.engine import Engine
from specsplit_drafter.expandable import GrowthLimits
from specsplit_drafter.ngram import NgramProposer
from specsplit_drafter.proposer import Proposer
from specsplit_drafter.servicer import DrafterServicer
from specsplit_drafter.session_table import Pace, SessionTable, unpaced
from specsplit_drafter.telemetry import Telemetry

_log = logging.getLogger(__name__)


def main(settings: DrafterSettings) -> int:
    """Run one drafter until SIGTERM and return the exit status. Raises SpecsplitError if it cannot start."""
    switch_often()  # two threads hand each other small things all the time
    set_up("drafter", settings.log_level, settings.log_format)
    announce("drafter", settings)
    return asyncio.run(serve(settings))


async def serve(
    settings: DrafterSettings, *, signals: bool = True, on_server: Callable[[Server], None] | None = None
) -> int:
    """Run one drafter and return the exit status: 1 if its engine failed, else 0.

    `on_server` is given the server as soon as it listens; with `signals` False only its `leave` ends it.
    """
    server = Server(settings, "drafter", services=[DRAFTER_SERVICE], session_methods=["Draft"])
    telemetry = Telemetry(settings, server.tracing)
    servicer = DrafterServicer(telemetry, settings.max_message_bytes)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
    await server.start(signals=signals)
    if on_server is not None:
        on_server(server)
    with ExitStack() as exposed:
        try:
            exposed.enter_context(telemetry.expose())
            table = await asyncio.to_thread(load_table, settings)
        except BaseException:
            await server.stop()
            raise
        table.rounds = telemetry.rounds()
        failures: list[str] = []
        engine = servicer.engine = Engine(table, SystemClock(), servicer, _leaver(server, failures))
        telemetry.watch(engine.statistics)
        await _run(settings, server, engine, signals=signals)
        return 1 if failures else 0


async def _run(settings: DrafterSettings, server: Server, engine: Engine, *, signals: bool) -> None:
    """Serve from the moment when the drafter is ready until it has left."""
    engine.start()
    try:
        server.ready()
        async with _membership(settings, server, engine) as membership:
            await server.run(lambda: _drain(engine, membership), signals=signals)
    finally:
        await asyncio.to_thread(engine.stop)


def load_table(settings: DrafterSettings) -> SessionTable:
    """Make the proposer of these settings, with no sessions yet. Takes as long as loading the model does. Raises LoadError."""
    limits = GrowthLimits(settings.expand_width, settings.expand_survival, settings.push_survival)
    table = SessionTable(load_proposer(settings), limits, settings.max_sessions, _pace(settings))
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
        settings.model, num_pages=settings.kv_tokens, page_size=1, dtype=settings.dtype, device=settings.device
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
    return ModelProposer(HeadModel(head, settings.kv_tokens, need), settings.children)


def _pace(settings: DrafterSettings) -> Pace:
    if not settings.paced_expansion_base_ms and not settings.paced_expansion_per_token_us:
        return unpaced
    from specsplit.model import CostCurve, Paced  # noqa: PLC0415

    curve = CostCurve(settings.paced_expansion_base_ms, settings.paced_expansion_per_token_us)
    return Paced(curve, SystemClock()).step


def _leaver(server: Server, failures: list[str]) -> Callable[[], None]:
    """Make what the engine's thread calls when it fails: a drafter without an engine must not go on saying SERVING."""
    loop = asyncio.get_running_loop()

    def leave() -> None:
        failures.append("engine")
        loop.call_soon_threadsafe(server.leave)
        loop.call_soon_threadsafe(server.leave)  # at once: there is nothing to wait for

    return leave


@asynccontextmanager
async def _membership(settings: DrafterSettings, server: Server, engine: Engine) -> AsyncIterator[Membership | None]:
    if not settings.coordinator:
        yield None
        return
    member_id = member_id_of(settings, "drafter", server.address)
    async with dial(settings.coordinator, settings) as channel:
        register = Register(member_id, server.address, engine.info, settings.max_sessions)
        membership = Membership(channel, register, engine.load, on_drain=server.leave, on_tracing=server.tracing.apply)
        task = asyncio.create_task(membership.run())
        try:
            yield membership
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _drain(engine: Engine, membership: Membership | None) -> None:
    """Take no new sessions, and wait for the running ones; those that are left when the time is up are handed back."""
    if membership is not None:
        membership.report_draining()
    loop, idle = asyncio.get_running_loop(), asyncio.Event()
    engine.drain(lambda: _set_soon(loop, idle))
    try:
        await idle.wait()
    except asyncio.CancelledError:
        engine.hand_back()
        await asyncio.to_thread(engine.stop)  # their verifiers are told, and their spans made, before the server ends
        raise


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set the event from another thread."""
    loop.call_soon_threadsafe(event.set)

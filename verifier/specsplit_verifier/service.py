"""The verifier as a process: the gRPC edge, the engine thread behind it, the streams to drafters, and its place in a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING

import torch

from specsplit.clock import Clock, SystemClock
from specsplit.draft_events import ToDrafter
from specsplit.errors import SpecsplitError
from specsplit.interpreter import freeze_heap, switch_often
from specsplit.membership import Register
from specsplit.membership import Roster as RosterDirective
from specsplit.model.causal_lm import CausalLM
from specsplit.model.paced import CostCurve, Paced
from specsplit.observe import Tracing, announce, fields, set_up
from specsplit.rpc import VERIFIER_SERVICE, Context, Membership, Server, dial, member_id_of
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import Load, ModelInfo, Plan, PlanChanges
from specsplit.wire import verifier as wire
from specsplit.wire.watching import Watched, watch_from_wire, watch_response
from specsplit_verifier.callers import Callers
from specsplit_verifier.engine import Engine
from specsplit_verifier.events import Cancel, DrafterLost, FromDrafter, NewPlan, Output, Roster, Submit
from specsplit_verifier.extraction import Extractor, Projection
from specsplit_verifier.links import Links
from specsplit_verifier.step import StepResult
from specsplit_verifier.target_runner import TargetRunner
from specsplit_verifier.telemetry import Telemetry

if TYPE_CHECKING:
    from specsplit.v1 import verifier_pb2

_log = logging.getLogger(__name__)
LOSSES_KEPT = 64


def load_target(settings: VerifierSettings, clock: Clock) -> TargetRunner:
    """Load the target, and set this process up to run it. Raises LoadError, saying why, if it cannot be served."""
    torch.set_num_threads(settings.threads)
    switch_often()  # three threads hand each other small things in every step
    target = CausalLM.load(
        settings.model,
        num_pages=settings.kv_tokens // settings.page_size,
        page_size=settings.page_size,
        dtype=settings.dtype,
        device=settings.device,
        inflate_layers=settings.inflate_layers,
    )
    projection = Projection.load(settings.feature_projection, target) if settings.feature_projection else None
    paced = Paced(CostCurve(settings.paced_step_base_ms, settings.paced_step_per_token_us), clock)
    runner = TargetRunner(target, paced, Extractor(target, projection), clock)
    freeze_heap()
    return runner


class Verifier:
    """The engine thread, seen from the event loop. Works with or without a gRPC server in front."""

    def __init__(
        self, settings: VerifierSettings, runner: TargetRunner, clock: Clock, telemetry: Telemetry | None = None
    ) -> None:
        """Without `telemetry` there are no spans."""
        self.info: ModelInfo = runner.target.info
        self._launched_plan = settings.plan
        self._changes = PlanChanges()
        self.engine = Engine(runner, settings, self, clock)
        self.links = Links(settings, clock, self._from_drafter)
        self.drafters_lost: deque[str] = deque(maxlen=LOSSES_KEPT)
        """Addresses of the drafters lost last, oldest first."""
        self._loop = asyncio.get_running_loop()
        self._callers = Callers()
        self.on_lost: Callable[[str], None] = _ignore
        """Called with the address of every drafter that is lost."""
        self._telemetry = telemetry or Telemetry(settings, Tracing("verifier", settings.trace_scope), clock)
        self._telemetry.watch(self.load, self.links.statistics.values)
        self._telemetry.watch_plan(lambda: self.engine.statistics().plan_switches)
        self.engine.start()
        self._watching_steps = asyncio.create_task(self._watch_steps(min(1.0, settings.step_timeout_s / 8)))

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Tokens | Finished, None]:
        """Decode one session. Closing the iterator frees it. Raises SpecsplitError."""
        with self._callers.waiting() as (session, outputs):
            self.engine.post(Submit(session, request, self._telemetry.submitted(session, request)))
            failure: SpecsplitError | None = None
            try:
                while True:
                    output = await outputs.get()
                    if isinstance(output, SpecsplitError):
                        failure = output
                        raise output
                    yield output
                    if isinstance(output, Finished):
                        return
            finally:
                self.engine.post(Cancel(session))
                self._telemetry.ended(session, failure)

    def replan(self, changes: PlanChanges) -> None:
        """From the next step on the default plan is this verifier's own with these changes, for sessions that are running too.

        Raises InvalidRequest for a value out of range.
        """
        changes.over(self._launched_plan)
        if changes != self._changes:  # the coordinator says it again at every join
            self._changes = changes
            self.engine.post(NewPlan(changes))

    def subscribe(self, reader: Callable[[StepResult], None]) -> None:
        """From the next step on `reader` is called with what every one was, on the event loop, behind what it brought to callers."""
        self._telemetry.subscribe(reader)

    @property
    def failed(self) -> asyncio.Event:
        """Set if the engine thread died, or a step hangs; nothing can be decoded any more."""
        return self._callers.failed

    @property
    def watching(self) -> bool:
        """True if the engine is to tell of its steps."""
        return self._telemetry.wanted

    @property
    def watched(self) -> frozenset[int]:
        """Sessions that somebody looks at."""
        return self._telemetry.watching.watched

    @property
    def plan(self) -> Plan:
        """What it steps under where a request does not say otherwise."""
        return self.engine.statistics().plan

    def watch(self, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """What happens to a session, for people who look on; see `Watching.watch`."""
        return self._telemetry.watching.watch(request_id)

    def deliver(
        self,
        outputs: Sequence[tuple[int, Output]],
        drafts: Sequence[tuple[str, int, ToDrafter]],
        result: StepResult | None,
    ) -> None:
        """The engine thread's hand-over: one hop to the event loop, whatever the batch."""
        self._loop.call_soon_threadsafe(self._hand_out, outputs, drafts, result)

    def died(self) -> None:
        """The engine thread is gone: end every session, and let the process leave."""
        why = "the engine of this verifier has died; its log says why"
        self._loop.call_soon_threadsafe(self._callers.fail, why)

    async def _watch_steps(self, every_s: float) -> None:
        """A step that hangs takes the verifier with it: sessions are handed back, and the process may leave."""
        while not (why := self.engine.watchdog.barks):
            await asyncio.sleep(every_s)
        _log.error("%s; sessions are handed back, and this process ends", why)
        self._callers.fail(why)

    def _hand_out(
        self,
        outputs: Sequence[tuple[int, Output]],
        drafts: Sequence[tuple[str, int, ToDrafter]],
        result: StepResult | None,
    ) -> None:
        self.links.send(drafts)  # first: it is what the next step may wait for
        for session, output in outputs:
            self._callers.tell(session, output)
        if result is not None:
            self._telemetry.step(result)

    def _from_drafter(self, event: FromDrafter | DrafterLost) -> None:
        self.engine.post(event)
        if isinstance(event, FromDrafter):
            self._telemetry.watching.grown(event)
        if isinstance(event, DrafterLost):
            self.drafters_lost.append(event.address)
            self._telemetry.drafter_lost()
            self.on_lost(event.address)

    def load(self) -> Load:
        """For heartbeats."""
        now = self.engine.statistics()
        return Load(now.running + now.waiting, now.waiting, now.free_pages, now.total_pages, now.steps, now.step_ms)

    async def drained(self) -> None:
        """Return once no session is left."""
        await self._callers.gone()

    async def close(self) -> None:
        """End the streams and the engine thread."""
        self._watching_steps.cancel()
        await self.links.close()
        await asyncio.to_thread(self.engine.stop)


def _ignore(address: str) -> None:
    """Nobody wants to hear of lost drafters."""


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """The edge: parse, one call, serialise."""

    verifier: Verifier
    """Set when the target is loaded; the server answers UNAVAILABLE until then."""

    async def Decode(  # noqa: N802 (the name is the protocol's)
        self, request: verifier_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """One session."""
        info = self.verifier.info
        parsed = wire.decode_from_wire(request, info.vocabulary.size, info.max_context)
        events = self.verifier.decode(parsed)
        try:
            async for event in events:
                yield wire.decode_response(event)
        finally:
            await events.aclose()

    async def Watch(  # noqa: N802
        self, request: verifier_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[verifier_pb2.WatchResponse]:
        """What happens to one session."""
        async with aclosing(self.verifier.watch(watch_from_wire(request))) as events:
            async for event, missed in events:
                yield watch_response(event, missed)


class _Member:
    """The verifier's place in a cluster: drafters it may use come in, drafters it lost go out."""

    def __init__(self, settings: VerifierSettings, server: Server, verifier: Verifier) -> None:
        self._engine = verifier.engine
        self._names: dict[str, str] = {}
        self.channel = dial(settings.coordinator, settings)
        register = Register(
            member_id_of(settings, "verifier", server.address), server.address, verifier.info, settings.max_sessions
        )
        self.membership = Membership(
            self.channel,
            register,
            verifier.load,
            plan=lambda: verifier.plan,
            on_roster=self._on_roster,
            on_plan=verifier.replan,
            on_tracing=server.tracing.apply,
            on_drain=server.leave,
        )
        verifier.on_lost = self._on_lost

    def _on_roster(self, roster: RosterDirective) -> None:
        self._names = {endpoint.address: endpoint.member_id for endpoint in roster.drafters}
        self._engine.post(Roster(tuple(roster.drafters)))

    def _on_lost(self, address: str) -> None:
        if address in self._names:
            self.membership.report_lost(self._names[address])


async def serve(
    settings: VerifierSettings, *, signals: bool = True, on_server: Callable[[Server], None] | None = None
) -> int:
    """Serve until told to leave; returns the exit status: 1 if the engine died or a step hangs, else 0.

    `on_server` is given the server as soon as it listens; with `signals` False only its `leave` ends it.
    """
    clock = SystemClock()
    server = Server(settings, "verifier", services=[VERIFIER_SERVICE], session_methods=["Decode"])
    servicer = VerifierServicer()
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc)
    await server.start(signals=signals)
    if on_server is not None:
        on_server(server)
    telemetry = Telemetry(settings, server.tracing, clock)
    with ExitStack() as exposed:
        try:
            exposed.enter_context(telemetry.expose())
            runner = await asyncio.to_thread(load_target, settings, clock)
        except BaseException:
            await server.stop()
            raise
        verifier = servicer.verifier = Verifier(settings, runner, clock, telemetry)
        server.ready()
        info = verifier.info
        _log.info("serving", extra=fields(model=info.model, vocabulary=info.vocabulary, max_context=info.max_context))
        return await _run(settings, server, verifier, signals=signals)


async def _run(settings: VerifierSettings, server: Server, verifier: Verifier, *, signals: bool) -> int:
    """From ready to left."""
    member = _Member(settings, server, verifier) if settings.coordinator else None
    joined = asyncio.create_task(member.membership.run()) if member else None

    async def drain() -> None:
        if member:
            member.membership.report_draining()
        await verifier.drained()

    async def leave_if_failed() -> None:
        await verifier.failed.wait()
        server.leave()

    watch = asyncio.create_task(leave_if_failed())
    try:
        await server.run(drain, signals=signals)
        return 1 if verifier.failed.is_set() else 0
    finally:
        watch.cancel()
        if joined and member:
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)
            await member.channel.close()
        await verifier.close()


def main(settings: VerifierSettings) -> int:
    """Run the verifier in this process until it is told to leave."""
    set_up("verifier", settings.log_level, settings.log_format)
    announce("verifier", settings)
    return asyncio.run(serve(settings))

"""A verifier without its server: the engine thread, its sessions and the streams to drafters, as the event loop sees them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from specsplit.clock import Clock
from specsplit.membership import PlanOrder
from specsplit.model_thread import ModelThread
from specsplit.observe import Tracing
from specsplit.records import StateBytes
from specsplit.sessions import DecodeEvent, DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import AS_SET, Adaptive, Control, Load, ModelInfo, Plan, PlanChanges
from specsplit.wire.watching import Watched
from specsplit_verifier.drafters.streams import DrafterStreams
from specsplit_verifier.edge.constraints import Constraints
from specsplit_verifier.edge.sessions import Sessions
from specsplit_verifier.engine.engine import Engine
from specsplit_verifier.policy.adaptive.choice import bound_of, controller_for
from specsplit_verifier.records.events import DrafterLost, FromDrafter, Outputs, Sends
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.report.telemetry import Telemetry
from specsplit_verifier.target.runner import TargetRunner

_log = logging.getLogger(__name__)


class Verifier:
    """The engine thread, seen from the event loop. Works with or without a gRPC server in front."""

    def __init__(
        self,
        settings: VerifierSettings,
        runner: TargetRunner,
        clock: Clock,
        telemetry: Telemetry | None = None,
        thread: ModelThread | None = None,
    ) -> None:
        """Without `telemetry` there are no spans. `thread`: on which the target was loaded, and is stepped; None: a new one."""
        self._settings = settings
        self._wanted = PlanOrder()
        self.engine = Engine(runner, settings, self, clock, thread=thread)
        self._constraints = Constraints(settings.model, self.info)
        self.streams = DrafterStreams(settings, clock, self._from_drafter)
        self._loop = asyncio.get_running_loop()
        self.on_lost: Callable[[str], None] = _ignore
        """Called with the address of every drafter that is lost."""
        self.on_weights: Callable[[], None] = _do_nothing
        """Called when the target has other weights."""
        self._telemetry = telemetry or Telemetry(settings, Tracing("verifier", settings.trace_scope), clock)
        self.sessions = Sessions(self.engine.post, self._telemetry, self._constraints, settings.gather_ms / 1000)
        self.failed = self.sessions.failed
        """Set if the engine thread died, or a step hangs; nothing can be decoded any more."""
        metrics = self._telemetry.metrics
        metrics.watch(self.load)
        metrics.watch_streams(self.streams.statistics.values)
        metrics.watch_plan(lambda: self.engine.statistics().plan, lambda: self.control)
        metrics.watch_graphs(lambda: runner.target.graph_statistics)
        states = runner.target.states
        metrics.watch_states(lambda: StateBytes() if states is None else states.taken)
        self.engine.start()
        self._watching_steps = asyncio.create_task(self._watch_steps(min(1.0, settings.step_timeout_s / 8)))

    @property
    def info(self) -> ModelInfo:
        """The target, with the adapters that it has now."""
        return replace(self.engine.target.info, looks_up=self._settings.lookup)

    def decode(self, request: DecodeRequest) -> AsyncGenerator[DecodeEvent, None]:
        """Decode one session; see `Sessions.decode`."""
        return self.sessions.decode(request)

    def replan(self, changes: PlanChanges, control: Control = AS_SET) -> None:
        """Obey an operator's order from the next step on, for sessions that are running too; see `PlanOrder`.

        Raises InvalidRequest for a value out of range, or a controller that does not go with the settings.
        """
        changes.over(self._settings.plan)
        controller_for(self._settings, control)
        wanted = PlanOrder(changes, control)
        if wanted != self._wanted:  # the coordinator says it again at every join
            self._wanted = wanted
            self.engine.post(wanted)

    def subscribe(self, reader: Callable[[StepResult], None]) -> None:
        """Have `reader` called with the result of every step from the next one on, on the event loop, after its outputs are delivered."""
        self._telemetry.subscribe(reader)

    @property
    def watching(self) -> bool:
        """True if the engine is to deliver the results of steps."""
        return self._telemetry.wanted

    @property
    def watched(self) -> frozenset[int]:
        """Sessions that are watched."""
        return self._telemetry.watching.watched

    @property
    def plan(self) -> Plan:
        """The plan that sessions step under where a request does not say otherwise."""
        return self.engine.statistics().plan.default

    @property
    def control(self) -> Control:
        """The controller in force, and its bound if it has one."""
        control = self._wanted.control
        adaptive = control.adaptive or self._settings.controller
        if adaptive is not Adaptive.GOODPUT:
            return Control(adaptive)
        return Control(adaptive, bound_of(self._settings, control.max_draft_tokens))

    def watch(self, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """Watch a session; see `Watching.watch`."""
        return self._telemetry.watching.watch(request_id)

    def deliver(self, outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
        """Hand a step's outputs over to the event loop, in one hop whatever the batch."""
        self._loop.call_soon_threadsafe(self._hand_out, outputs, sends, result)

    def died(self, why: str = "") -> None:
        """End every session, saying why, and let the process leave: the engine thread is gone."""
        why = why or "the engine of this verifier has died; its log says why"
        _log.error("sessions are handed back, and this process ends: %s", why)
        self._loop.call_soon_threadsafe(self.sessions.fail, why)

    async def _watch_steps(self, every_s: float) -> None:
        """Hand sessions back, and let the process leave: a step hangs."""
        while not (why := self.engine.watchdog.look(every_s)):
            await asyncio.sleep(every_s)
        _log.error("%s; sessions are handed back, and this process ends", why)
        self.sessions.fail(why)
        await asyncio.to_thread(self.engine.rank.fail, why)

    def _hand_out(self, outputs: Outputs, sends: Sends, result: StepResult | None) -> None:
        self.streams.send(sends)  # first: it is what the next step may wait for
        for session, output in outputs:
            self.sessions.tell(session, output)
        if result is not None:
            self._telemetry.step(result)

    def _from_drafter(self, event: FromDrafter | DrafterLost) -> None:
        self.engine.post(event)
        if isinstance(event, FromDrafter):
            self._telemetry.watching.grown(event)
        if isinstance(event, DrafterLost):
            self._telemetry.metrics.drafter_lost()
            self.on_lost(event.address)

    def load(self) -> Load:
        """Measure how busy the verifier is, for heartbeats."""
        return self.engine.statistics().load

    async def drained(self) -> None:
        """Return once no session is left, here or on another rank of the group: the others can do nothing without this one."""
        await self.sessions.gone()
        await self.engine.rank.unneeded(self.failed)

    async def close(self) -> None:
        """End the streams and the engine thread."""
        self._watching_steps.cancel()
        self._constraints.close()
        await self.streams.close()
        await asyncio.to_thread(self.engine.stop)


def _ignore(address: str) -> None:
    """Do nothing: the default of `on_lost`."""


def _do_nothing() -> None:
    """Do nothing: the default of `on_weights`."""

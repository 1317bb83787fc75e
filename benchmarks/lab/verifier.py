"""A verifier without threads: the product's EngineCore, a target, and a step that takes what its curve says.

What the engine's threads do is done here by events: while a step is in flight what drafters send is taken in when it comes, and
everything else waits until it is over (verifier/specsplit_verifier/engine/engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.lab.clock import PricedClock
from benchmarks.lab.cores import Cores
from benchmarks.lab.cost import StepCurve
from benchmarks.lab.events import Timeline
from benchmarks.lab.source import Target
from benchmarks.lab.transport import Wire
from specsplit.draft_events import ToDrafter
from specsplit.v1 import drafter_pb2
from specsplit.wire import drafter as wire
from specsplit.wire.packing import packed
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.policy.planner import Pause
from specsplit_verifier.records.events import DrafterLost, FromDrafter, Output, SessionEvent
from specsplit_verifier.records.step import StepInput, StepOutput, StepResult

MAX_MESSAGE_BYTES = 64 * 2**20
LEAST_PAUSE_S = 1e-9
"""A pause is never so short that it does not turn the clock."""


class Verifier:
    """One rank of a verifier."""

    def __init__(
        self,
        timeline: Timeline,
        core: EngineCore,
        target: Target,
        curve: StepCurve,
        cores: Cores,
        lookups: PricedClock,
        tell: Callable[[int, Output], None],
        observe: Callable[[StepResult], None],
    ) -> None:
        """`lookups`: measures lookup beside drafters. `tell` hears what sessions get, `observe` what every step was."""
        self._timeline = timeline
        self._core = core
        self._target = target
        self._curve = curve
        self._cores = cores
        self._lookups = lookups
        self._tell = tell
        self._observe = observe
        self.wires: dict[str, Wire] = {}
        """Wires to every drafter, by address."""
        self._waiting = ExitStack()
        self._deferred: list[SessionEvent] = []
        self._in_flight = False
        self._due = 0
        """Which of the turns that were arranged is still wanted."""

    def post(self, event: SessionEvent) -> None:
        """Take in an event, now or when the step in flight is over."""
        if not self._in_flight:
            self._core.handle(event)
            self._turn_after(0.0)
        elif isinstance(event, FromDrafter) and not any(isinstance(e, DrafterLost) for e in self._deferred):
            self._core.handle(event)
        else:
            self._deferred.append(event)

    def receive(self, address: str, message: bytes) -> None:
        """Take in a message of a drafter."""
        events = wire.draft_response_events(drafter_pb2.DraftResponse.FromString(message))
        self.post(FromDrafter(address, events))

    def _turn_after(self, seconds: float) -> None:
        self._due += 1
        due = self._due
        self._timeline.after(seconds, lambda: self._turn(due))

    def _turn(self, due: int) -> None:
        if due != self._due:
            return  # something came first
        self._waiting.close()
        step = self._core.schedule()
        self._send()
        if isinstance(step, Pause):
            self._pause(step)
        else:
            self._run(step)

    def _pause(self, pause: Pause) -> None:
        if pause.seconds is None:
            self._waiting.callback(self._core.stopwatch.restart)
        else:
            self._turn_after(max(pause.seconds, LEAST_PAUSE_S))
        self._waiting.enter_context(self._core.stopwatch.waiting())

    def _run(self, step: StepInput) -> None:
        self._in_flight = True
        seconds = self._curve.of(step) + self._lookups.take()
        output, began = replace(self._target.run(step), cold=False), self._timeline.clock.now()
        self._cores.step(seconds, lambda: self._ran(step, output, began, seconds))

    def _ran(self, step: StepInput, output: StepOutput, began: float, seconds: float) -> None:
        taken_s = self._timeline.clock.now() - began if self._cores.shared else seconds
        result = self._core.commit(step, replace(output, started=began, forward_s=taken_s))
        self._in_flight = False
        self._send()
        self._observe(result)
        deferred, self._deferred = self._deferred, []
        for event in deferred:
            self._core.handle(event)
        self._turn_after(0.0)

    def _send(self) -> None:
        outputs, sends = self._core.outgoing()
        for session, output in outputs:
            self._tell(session, output)
        by_address: dict[str, list[tuple[int, ToDrafter]]] = {}
        for address, session, event in sends:
            by_address.setdefault(address, []).append((session, event))
        for address, events in by_address.items():
            self._send_to(self.wires[address], events)

    def _send_to(self, drafter: Wire, events: Sequence[tuple[int, ToDrafter]]) -> None:
        for message in packed(events, MAX_MESSAGE_BYTES):
            drafter.send(wire.draft_request(message).SerializeToString())

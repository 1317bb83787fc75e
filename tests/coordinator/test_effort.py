"""What a token costs the coordinator does not grow with whoever else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count

from specsplit.client import make_request
from specsplit.clock import ManualClock
from specsplit.generation.preparation import RandomSources
from specsplit.membership import Heartbeat, Register
from specsplit.observe import Tracing
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.sessions import Tokens
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import DrafterInfo, DrafterKind, Load, ModelInfo, SpeculationStatistics, TraceScope
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.edge.telemetry import subscribe
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_session import VerifierSession
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.caps import Caps
from specsplit_coordinator.requests.generation import Generator
from specsplit_coordinator.requests.quotas import Quota, Quotas
from specsplit_coordinator.requests.request_log import RequestLog
from specsplit_coordinator.requests.run import ClusterAccess
from tests.support.effort import Effort
from tests.support.eventually import eventually
from tests.support.pulled import Told

from .conftest import POCKET

TOKENIZER = Tokenizer.load(POCKET)
VOCABULARY = TOKENIZER.vocabulary


class Steady:
    """Commits a token in every step, and has no end."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        """One for each session."""

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        steps = count(1)
        self.steps.append(lambda: session.take([Tokens((5,), 0, SpeculationStatistics(steps=next(steps)))]))
        await asyncio.Event().wait()


class Crowd:
    """A coordinator with so many members of each kind, requests that run and requests that wait, each of a client of its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._decoder, clock = Steady(), ManualClock()
        self._registry = Registry(VOCABULARY, clock, 9.0)
        quotas = Quotas(Quota(requests=9, queued=9, tokens_per_minute=100_000), clock, 1.0)
        self.admission = Admission(self._registry, size, 1.0, quotas=quotas)
        log = RequestLog(clock, Tracing("coordinator", TraceScope()))
        subscribe(log, CoordinatorMetrics(on=True))
        placement = DrafterPlacement(DrafterScorer(self._registry, clock))
        self._generator = Generator(
            TOKENIZER,
            ClusterAccess(self._registry, self.admission, self._decoder, placement, VOCABULARY),
            RandomSources(lambda: 1, lambda: "drawn"),
            log,
            Caps(),
            quotas,
        )

    async def gather(self, stack: AsyncExitStack) -> Callable[[], object]:
        """Have all of them come -> what brings one of the requests that run a token."""
        for number in range(self._size):
            drafter = DrafterInfo(DrafterKind.NGRAM, "", None, 512)
            self._registry.register(Register(f"d{number}", "a:1", drafter, 9))
            member = self._registry.register(Register(f"v{number}", "a:1", ModelInfo("toy", VOCABULARY, 512), 1))
            self._registry.on_heartbeat(member, Heartbeat(Load(free_pages=999, total_pages=999, page_size=16)))
        for number in range(2 * self._size):
            request = make_request("x", max_tokens=100, ignore_eos=True)
            generated = self._generator.generate(request, lambda: None, f"client {number}", Told(lambda _: None))
            task = asyncio.create_task(generated)
            stack.push_async_callback(asyncio.wait, {task})
            stack.callback(task.cancel)
        await eventually(lambda: self.admission.queued >= self._size <= len(self._decoder.steps))
        for step in self._decoder.steps * 3:
            step()
        return self._decoder.steps[0]

    def close(self) -> None:
        self._generator.close()


async def test_a_token_is_as_much_work_in_a_large_cluster_that_is_busy_as_in_a_small_one() -> None:
    lines: list[int] = []
    for size in (1, 40):
        effort, crowd = Effort(), Crowd(size)
        async with AsyncExitStack() as stack:
            step = await crowd.gather(stack)
            assert (crowd.admission.running, crowd.admission.queued) == (size, size)
            with effort.counted():
                step()
        crowd.close()
        lines.append(effort.lines)
    assert lines[0] == lines[1] > 20

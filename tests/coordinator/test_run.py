"""The run of one choice, over a decoder of its own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from specsplit.client import make_request
from specsplit.clock import SystemClock
from specsplit.errors import Exhausted, Unavailable
from specsplit.generation.preparation import RandomSources
from specsplit.membership import Heartbeat, Register
from specsplit.observe import Tracing
from specsplit.sessions import Preempted, Tokens
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import Load, ModelInfo, SpeculationStatistics, TraceScope
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_session import VerifierSession
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.caps import Caps
from specsplit_coordinator.requests.generation import Generator
from specsplit_coordinator.requests.quotas import Quota, Quotas
from specsplit_coordinator.requests.request_log import RequestLog
from specsplit_coordinator.requests.run import ClusterAccess
from tests.support.eventually import eventually
from tests.support.pulled import answered

from .conftest import POCKET

TOKENIZER = Tokenizer.load(POCKET)
VOCABULARY = TOKENIZER.vocabulary


class Preempting:
    """Preempts a session behind its first token, and takes its time to let go of it."""

    async def decode(self, verifier: MemberState, session: VerifierSession) -> None:
        session.take([Tokens((5,), 0, SpeculationStatistics(steps=1))])
        await asyncio.sleep(0)
        session.take([Preempted()])
        await asyncio.Event().wait()


def a_coordinator() -> tuple[Generator, Registry, Admission]:
    """One whose verifiers preempt."""
    clock = SystemClock()
    registry = Registry(VOCABULARY, clock, 9.0)
    admission, log = Admission(registry, 9, 1.0), RequestLog(clock, Tracing("coordinator", TraceScope()))
    random, placement = RandomSources(lambda: 1, lambda: "drawn"), DrafterPlacement(DrafterScorer(registry, clock))
    cluster = ClusterAccess(registry, admission, Preempting(), placement, VOCABULARY)
    generator = Generator(TOKENIZER, cluster, random, log, Caps(), Quotas(Quota(), clock, 1.0))
    return generator, registry, admission


async def test_a_caller_that_goes_away_while_its_session_moves_leaves_no_place_taken() -> None:
    generator, registry, admission = a_coordinator()
    for name, most in (("full", 64), ("roomy", 1)):
        member = registry.register(Register(name, "a:1", ModelInfo("toy", VOCABULARY, 512), most))
        registry.on_heartbeat(
            member, Heartbeat(Load(free_pages=0 if name == "full" else 99, total_pages=99, page_size=16))
        )
    registry.drain(roomy := registry.verifiers[1])

    async def ask() -> None:
        async with aclosing(answered(generator.generate, make_request("x"), lambda: None, "")) as events:
            async for _ in events:
                roomy.draining = False  # the session has begun on the other

    asked = asyncio.create_task(ask())
    await eventually(lambda: admission.running >= 2)
    asked.cancel()
    await asyncio.wait({asked})
    assert (admission.running, roomy.running) == (0, 0)


async def test_one_that_waits_for_a_first_place_when_nobody_has_any_more_ends_with_that_error_as_it_is() -> None:
    generator, registry, admission = a_coordinator()
    member = registry.register(Register("one", "a:1", ModelInfo("toy", VOCABULARY, 512), 1))
    lease = await admission.acquire()

    async def ask() -> None:
        async with aclosing(answered(generator.generate, make_request("x"), lambda: None, "")) as events:
            async for _ in events:
                pass

    asked = asyncio.create_task(ask())
    async with asyncio.timeout(10):
        await eventually(lambda: admission.queued)
        registry.drain(member)
        with pytest.raises(Unavailable, match="one is draining") as caught:
            await asked
    assert caught.value.__cause__ is not caught.value, "no error is its own cause"
    lease.release()


async def ask_for_choices(generator: Generator, n: int) -> None:
    async with aclosing(answered(generator.generate, make_request("x", n=n), lambda: None, "")) as events:
        async for _ in events:
            pass


async def test_choices_of_requests_that_come_in_one_turn_of_the_loop_are_counted_before_the_next_one_asks() -> None:
    generator, registry, admission = a_coordinator()  # in whose queue nine may wait
    registry.register(Register("one", "a:1", ModelInfo("toy", VOCABULARY, 512), 1))
    asked = [asyncio.create_task(ask_for_choices(generator, 8)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert (admission.running, admission.queued) == (1, 7)
    for refused in asked[1:]:
        with pytest.raises(Exhausted, match=r"1 requests run and 7 wait"):
            await refused
    asked[0].cancel()
    await asyncio.wait(asked)
    assert (admission.running, admission.queued) == (0, 0)


@pytest.mark.parametrize("turns", range(4))
async def test_choices_whose_caller_goes_away_before_they_are_run_leave_no_place_taken(turns: int) -> None:
    generator, registry, admission = a_coordinator()
    registry.register(Register("one", "a:1", ModelInfo("toy", VOCABULARY, 512), 2))
    asked = asyncio.create_task(ask_for_choices(generator, 4))
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait({asked})
    assert (admission.running, admission.queued) == (0, 0)
    await asyncio.wait_for(admission.idle(), 5)

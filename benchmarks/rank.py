"""A verifier rank in this process, without a server in front: its engine thread, its streams to drafters, its step records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from specsplit.clock import SystemClock
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import VerifierSettings
from specsplit.values import Endpoint, PlanChanges, Sampling, SpeculationStatistics, Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult


@dataclass(frozen=True)
class Generated:
    """One session from submission to its end."""

    tokens: list[int]
    seconds: float
    speculation: SpeculationStatistics


@asynccontextmanager
async def rank(settings: VerifierSettings) -> AsyncIterator[Verifier]:
    """A running verifier for the duration of the block."""
    clock = SystemClock()
    verifier = Verifier(settings, await asyncio.to_thread(load_target, settings, clock), clock)
    try:
        yield verifier
    finally:
        await verifier.close()


def request(
    prompt: Sequence[int], new: int, sampling: Sampling, drafter: Endpoint | None, plan: PlanChanges | None = None
) -> DecodeRequest:
    """`new` tokens exactly behind `prompt`, drafted for by `drafter` (None: nobody)."""
    return DecodeRequest("benchmark", prompt, sampling, Stopping(new, ignore_eos=True), plan or PlanChanges(), drafter)


async def generate(verifier: Verifier, wanted: DecodeRequest) -> Generated:
    """Decode one request to its end."""
    started, tokens = time.perf_counter(), list[int]()
    async for event in verifier.decode(wanted):
        if isinstance(event, Finished):
            return Generated(tokens, time.perf_counter() - started, event.speculation)
        if isinstance(event, Tokens):
            tokens += event.tokens
    raise RuntimeError("the session ended without an end")


def recorded(verifier: Verifier) -> list[StepResult]:
    """The steps from now on, oldest first, as they are made."""
    steps: list[StepResult] = []
    verifier.subscribe(steps.append)
    return steps

"""A verifier in this process, over a toy target."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specsplit.clock import SystemClock
from specsplit.sessions import DecodeRequest, Finished, Tokens
from specsplit.settings import VerifierSettings
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult
from specsplit_verifier.target.runner import TargetRunner
from tests.support.toys import alphabet_target

Decode = Callable[[Verifier, DecodeRequest], Awaitable[tuple[list[int], Finished]]]


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the alphabet target."""
    return alphabet_target(tmp_path_factory.mktemp("alphabet"))


@asynccontextmanager
async def verifier_over(folder: Path, **settings: Any) -> AsyncIterator[Verifier]:
    """A verifier as `verifier_beside_floods`, which must not drop a drafter for causing too much work."""
    async with verifier_beside_floods(folder, **settings) as verifier:
        yield verifier
    assert not sum(stream.drops for stream in verifier.streams.statistics.values())


@asynccontextmanager
async def verifier_beside_floods(folder: Path, **settings: Any) -> AsyncIterator[Verifier]:
    """As `verifier_of`, its target loaded, and its plan static unless told otherwise."""
    resolved = VerifierSettings(model=folder, **{"adaptive": "static", **settings})
    async with verifier_of(resolved, load_target(resolved, SystemClock())) as verifier:
        yield verifier


@asynccontextmanager
async def verifier_of(settings: VerifierSettings, runner: TargetRunner) -> AsyncIterator[Verifier]:
    """A verifier in this process over a target that is loaded; closed, and checked to be empty, on the way out."""
    verifier = Verifier(settings, runner, SystemClock())
    try:
        yield verifier
    finally:
        await verifier.close()
    load = verifier.load()
    assert load.sessions == 0 and load.free_pages == load.total_pages


def recorded(verifier: Verifier) -> list[StepResult]:
    """The steps from now on, oldest first, as they are made."""
    steps: list[StepResult] = []
    verifier.subscribe(steps.append)
    return steps


async def decode(verifier: Verifier, request: DecodeRequest) -> tuple[list[int], Finished]:
    """Every token of a session, and its end."""
    tokens: list[int] = []
    async for event in verifier.decode(request):
        if isinstance(event, Finished):
            return tokens, event
        if isinstance(event, Tokens):
            tokens += event.tokens
    raise AssertionError("the stream ended without an end")


def losses(verifier: Verifier) -> list[str]:
    """Addresses of the drafters that it loses from now on."""
    lost: list[str] = []
    verifier.on_lost = lost.append
    return lost

"""A target that fails on one session, on every session, or not at all but never returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specsplit.cli.local import Child
from specsplit.clock import ManualClock, SystemClock
from specsplit.errors import LoadError, TargetFailed, Unavailable
from specsplit.rpc import dial, wait_until_serving
from specsplit.rpc.health import NOT_SERVING, SERVING
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import Stopping
from specsplit.wire import verifier as wire
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.engine.watchdog import LEARNT_S, Watchdog
from specsplit_verifier.target.runner import profile
from tests.verifier.conftest import decode, recorded

POISON = ord("#")


@pytest.mark.parametrize("most", [8, 0])
def test_a_target_that_fails_at_the_first_steps_is_not_served(alphabet: Path, most: int) -> None:
    """At larger steps alone, or at the trial too that tells a step from a device."""

    def fault(_: object, __: object, kwargs: dict[str, torch.Tensor]) -> None:
        if kwargs["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("none left")

    runner = load_target(VerifierSettings(model=alphabet), SystemClock())
    runner.target.model.register_forward_pre_hook(fault, with_kwargs=True)
    with pytest.raises(LoadError, match=r"a first step of \d+ tokens fails .*kv_tokens.*: OutOfMemoryError: none left"):
        list(profile(runner))


@asynccontextmanager
async def verifier_before(
    folder: Path, fault: Callable[[torch.Tensor], None], **settings: Any
) -> AsyncIterator[Verifier]:
    """A verifier whose target calls `fault` with the tokens of every forward before it runs it."""
    resolved, clock = VerifierSettings(model=folder, **settings), SystemClock()
    runner = load_target(resolved, clock)
    hook = runner.target.model.register_forward_pre_hook(
        lambda _, __, kwargs: fault(kwargs["input_ids"]), with_kwargs=True
    )
    verifier = Verifier(resolved, runner, clock)
    try:
        yield verifier
    finally:
        hook.remove()
        await verifier.close()


def out_of_memory_on_poison(tokens: torch.Tensor) -> None:
    if bool((tokens == POISON).any()):
        raise torch.OutOfMemoryError("none left for this one")


def broken(tokens: torch.Tensor) -> None:
    raise RuntimeError("the device is gone")


def request(prompt: str, tokens: int = 20) -> DecodeRequest:
    return DecodeRequest(prompt, list(prompt.encode()), stopping=Stopping(tokens))


@pytest.mark.parametrize("poisoned", ["#", "#" * 40 + "a", "a#"])
async def test_a_session_that_the_target_fails_on_ends_alone(alphabet: Path, poisoned: str) -> None:
    async with verifier_before(alphabet, out_of_memory_on_poison, paced_step_base_ms=5.0) as verifier:
        steps = recorded(verifier)
        innocent = [decode(verifier, request(prompt)) for prompt in ("a", "." * 40 + "b", "c")]
        failing = decode(verifier, request(poisoned))
        *fine, failed = await asyncio.gather(*innocent, failing, return_exceptions=True)
        after, _ = await decode(verifier, request("a"))
        load = verifier.load()
    assert isinstance(failed, TargetFailed), "a status with which it is placed again"
    assert str(failed) == "the target failed on this session, twice in a row: OutOfMemoryError: none left for this one"
    for start, written in zip("abc", fine, strict=True):
        assert not isinstance(written, BaseException)
        assert written[0] == [ord("a") + (ord(start) - ord("a") + i) % 26 for i in range(1, 21)]
    assert bytes(after).startswith(b"bcd") and not verifier.failed.is_set()
    assert [list(step.failed.values()) for step in steps if step.failed] == [[failed]]
    assert load.free_pages == load.total_pages


async def test_a_step_that_succeeds_in_halves_says_nothing_of_what_steps_cost(alphabet: Path) -> None:
    seen = 0

    def fails_at_the_fifth(tokens: torch.Tensor) -> None:
        nonlocal seen
        seen += tokens.numel() == 3
        if tokens.numel() == 3 and seen == 5:
            raise torch.OutOfMemoryError("none left, just now")

    async with verifier_before(alphabet, fails_at_the_fifth, paced_step_base_ms=5.0) as verifier:
        for few in ("a", "ab"):  # so that halves are not the first of their sizes
            await asyncio.gather(*(decode(verifier, request(prompt)) for prompt in few))
        steps = recorded(verifier)
        written = await asyncio.gather(*(decode(verifier, request(prompt)) for prompt in "abc"))
    assert [bytes(tokens) for tokens, _ in written] == [bytes(range(first, first + 20)) for first in b"bcd"]
    assert not any(step.failed for step in steps)
    cold = [step.cold for step in steps if step.tokens == 3]
    assert cold[4] and sum(cold[1:]) == 1, "beside it only the first of its size"


async def test_a_target_that_fails_on_nothing_at_all_ends_the_engine(alphabet: Path) -> None:
    async with verifier_before(alphabet, broken) as verifier:
        results = await asyncio.gather(*(decode(verifier, request(prompt)) for prompt in "ab"), return_exceptions=True)
        assert verifier.failed.is_set()
    assert all(isinstance(result, Unavailable) for result in results)


def test_a_step_hangs_when_it_takes_the_limit_and_many_times_what_its_like_take() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, limit_s=60.0)
    assert not watchdog.expired
    with watchdog.over(tokens=20, expected_s=0.02):
        clock.advance(60.0)
        assert not watchdog.expired, "it is the first of its size, and may be compiling"
        clock.advance(0.5)
        assert watchdog.expired == "a step of this verifier hangs: it has run for 60.5 s, where 60.0 s is the limit"
    assert not watchdog.expired
    with watchdog.over(tokens=20, expected_s=0.02):
        clock.advance(LEARNT_S)
        assert not watchdog.expired
        clock.advance(0.5)
        assert watchdog.expired == "a step of this verifier hangs: it has run for 10.5 s, where 10.0 s is the limit"
    with watchdog.over(tokens=20, expected_s=1.0):
        clock.advance(49.0)
        assert not watchdog.expired, "steps of its size are long"


@pytest.mark.parametrize(("limit_s", "learns"), [(4.0, True), (60.0, False)])
def test_the_limit_of_the_settings_holds_where_it_is_less_or_nothing_can_be_learnt(
    limit_s: float, learns: bool
) -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, limit_s, learns=learns)
    for _ in range(2):
        with watchdog.over(tokens=20, expected_s=0.02):
            clock.advance(limit_s)
            assert not watchdog.expired
            clock.advance(0.5)
            assert watchdog.expired


def test_a_step_that_ends_with_an_error_teaches_nothing_of_its_size() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, limit_s=60.0)
    with pytest.raises(ValueError, match="broken"), watchdog.over(tokens=20, expected_s=0.02):
        raise ValueError("broken")
    with watchdog.over(tokens=20, expected_s=0.02):
        clock.advance(59.0)
        assert not watchdog.expired


def test_a_stop_before_a_step_began_is_no_time_of_that_step() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, limit_s=4.0)
    watchdog.look(1.0)
    clock.advance(3600.0)
    with watchdog.over(tokens=20, expected_s=0.02):
        for _ in range(5):
            assert not watchdog.look(1.0)
            clock.advance(1.0)
        assert watchdog.look(1.0)


def test_time_in_which_the_process_was_stopped_is_not_time_of_a_step() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, limit_s=4.0)
    with watchdog.over(tokens=20, expected_s=0.02):
        for _ in range(3):
            assert not watchdog.look(1.0)
            clock.advance(1.0)
        clock.advance(500.0)
        assert not watchdog.look(1.0)
        clock.advance(1.0)
        assert not watchdog.look(1.0)
        clock.advance(1.0)
        assert watchdog.look(1.0).endswith("it has run for 5.0 s, where 4.0 s is the limit")


async def statuses(channel: grpc.aio.Channel) -> list[int]:
    """What health says until the process leaves."""
    told: list[int] = []
    with suppress(grpc.aio.AioRpcError):
        async for each in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60):  # pyright: ignore[reportAttributeAccessIssue]
            told.append(each.status)
    return told


@asynccontextmanager
async def decoding(folder: Path, **settings: object) -> AsyncIterator[tuple[Child, asyncio.Future[object]]]:
    """A verifier process whose first step hangs, and what its only caller reads.

    In the end it must have left with status 1, and its health must have said that it would.
    """
    child = Child("hanging", "verifier", {"model": folder, "paced_step_base_ms": 2e6, **settings}, None)
    try:
        address = await asyncio.to_thread(child.wait_listening, 60)
        async with dial(address) as channel:
            await wait_until_serving(channel, 60)
            health = asyncio.create_task(statuses(channel))
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(wire.decode_to_wire(request("a")), timeout=60)
            yield child, asyncio.ensure_future(call.read())
            assert await health == [SERVING, NOT_SERVING]
        assert await asyncio.to_thread(child.process.wait, 60) == 1
    finally:
        child.kill()


async def test_a_verifier_whose_step_hangs_hands_its_sessions_back_and_exits(alphabet: Path) -> None:
    async with decoding(alphabet, step_timeout_s=0.5) as (child, reading):
        with pytest.raises(grpc.aio.AioRpcError, match="a step of this verifier hangs") as caught:
            await reading
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "sessions are handed back, and this process ends" in child.tail


async def test_a_verifier_that_is_told_to_end_while_a_step_hangs_ends(alphabet: Path) -> None:
    async with decoding(alphabet, step_timeout_s=4.0) as (child, reading):
        await asyncio.sleep(1.0)  # the step has begun by then, and is not given up yet
        child.process.terminate()
        with pytest.raises(grpc.aio.AioRpcError, match="a step of this verifier hangs"):
            await reading


async def test_a_verifier_that_is_closed_does_not_wait_for_a_step_that_hangs(
    alphabet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    told: list[object] = []

    def hang(_: torch.Tensor) -> None:
        free.wait(60)

    async with verifier_before(alphabet, hang, step_timeout_s=0.5) as verifier:
        with pytest.raises(Unavailable, match=r"where 0\.5 s is the limit"):
            await decode(verifier, request("a"))
        with pytest.raises(Unavailable, match="a step of this verifier hangs"):
            await decode(verifier, request("b"))
        monkeypatch.setattr(verifier, "deliver", lambda *said: told.append(said))
    free.set()
    for thread in [each for each in threading.enumerate() if each.name == "engine"]:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
    assert told == [], "the loop that would be told may be closed by then"

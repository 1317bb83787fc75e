"""Real verifiers behind a real coordinator, whose targets fail on a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest
import torch

from specsplit.client import TokenPrompt
from specsplit.clock import SystemClock
from specsplit.errors import Unavailable
from specsplit.rpc.edge import Edge
from specsplit.settings import VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit_verifier.edge.service import load_target, read_revision
from specsplit_verifier.edge.servicer import VerifierServicer
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier

from .conftest import POCKET

if TYPE_CHECKING:
    from .conftest import Cluster

POISON = 7
Serve = Callable[[str], Awaitable[None]]


class Fault:
    """Fails forwards that have the poisoned token, so many times."""

    def __init__(self) -> None:
        self.left = 0
        self.failed = 0

    def __call__(self, _: object, __: object, kwargs: dict[str, torch.Tensor]) -> None:
        if self.left and bool((kwargs["input_ids"] == POISON).any()):
            self.left -= 1
            self.failed += 1
            raise torch.OutOfMemoryError("none left, just now")


@pytest.fixture
def fault() -> Fault:
    return Fault()


@pytest.fixture
async def serve(cluster: Cluster, fault: Fault) -> AsyncIterator[Serve]:
    """Let a verifier join, all of which have the same fault."""
    async with AsyncExitStack() as stack:

        async def served(name: str) -> None:
            settings, clock = VerifierSettings(model=POCKET), SystemClock()
            servicer = VerifierServicer(Updates(settings, partial(read_revision, settings)), lambda method: None)
            runner = load_target(settings, clock)
            runner.target.model.register_forward_pre_hook(fault, with_kwargs=True)
            servicer.verifier = Verifier(settings, runner, clock)
            stack.push_async_callback(servicer.verifier.close)
            server = grpc.aio.server(interceptors=[Edge("verifier", lambda method: None)])
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            await cluster.join(name, address, runner.target.info)

        yield served


async def test_a_session_that_one_verifiers_target_fails_on_goes_on_with_another(
    cluster: Cluster, serve: Serve, fault: Fault
) -> None:
    await serve("one")
    prompt = TokenPrompt((5, POISON, 6))
    wanted = await cluster.client.generate(prompt, max_tokens=8, ignore_eos=True)
    await serve("other")
    fault.left = 2  # as often as one verifier tries
    result = await cluster.client.generate(prompt, max_tokens=8, ignore_eos=True)
    assert (result.text, fault.left) == (wanted.text, 0)


async def test_a_session_that_all_targets_fail_on_ends_after_three_placements_and_its_caller_is_told_why(
    cluster: Cluster, serve: Serve, fault: Fault
) -> None:
    for name in ("one", "other"):
        await serve(name)
    fault.left = 100
    with pytest.raises(Unavailable, match="the target failed on this session, twice in a row: OutOfMemoryError: none"):
        await cluster.client.generate(TokenPrompt((5, POISON, 6)), max_tokens=8, ignore_eos=True)
    assert fault.failed == 3 * 2
    breakers = [member.breaker for member in cluster.coordinator.registry.verifiers]
    assert [breaker.failures for breaker in breakers] == [0, 0], "others find the verifiers as they were"
    assert (await cluster.client.generate(TokenPrompt((5, 6)), max_tokens=8, ignore_eos=True)).text

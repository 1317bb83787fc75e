"""A gateway before many: two coordinators with three verifiers, or the verifiers themselves, of which some are killed under load."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from specsplit.cli.drawn_port import DrawnPort
from specsplit.cli.local import Child, LocalCluster
from specsplit.client import Client
from tests.clients.programs import POCKET
from tests.clients.test_discovery import status
from tests.support.eventually import eventually
from tests.support.ranks import free_port
from tests.system.conftest import as_soon_as

PACED = {"paced_step_base_ms": 20.0}
PROMPTS = [f"def f{number}(value):\n" for number in range(24)]
AT_ONCE, TOKENS = 6, 40


@dataclass
class Many:
    """Three verifiers of two coordinators."""

    cluster: LocalCluster
    other: Child

    @property
    def coordinators(self) -> list[str]:
        return [self.cluster.address, self.other.address]

    @property
    def verifiers(self) -> list[str]:
        return [verifier.address for verifier in self.cluster.verifiers]


@pytest.fixture
def many() -> Iterator[Many]:
    with closing(DrawnPort("127.0.0.1:0")) as first, closing(DrawnPort("127.0.0.1:0")) as second:
        members = {"coordinator": f"{first.listen},{second.listen}"}
        other = Child("coordinator-2", "coordinator", {"model": POCKET / "target", "listen": second.listen}, None)
        try:
            other.wait_listening(60)
            with (
                LocalCluster(POCKET / "target", verifiers=3, listen=first.listen, verifier=PACED | members) as cluster,
                Client(other.address) as there,
            ):
                as_soon_as(lambda: len(there.cluster().members) == 3)
                yield Many(cluster, other)
        finally:
            other.kill()


@contextmanager
def gateway(workers: Sequence[str], *options: str) -> Iterator[str]:
    """A gateway before these, with its retries and circuit breakers -> its URL."""
    ports = {name: free_port() for name in ("port", "prometheus-port")}
    command = [sys.executable, "-m", "smg.launch_router", "--host=127.0.0.1", "--prometheus-host=127.0.0.1"]
    command += [
        *(f"--{name}={port}" for name, port in ports.items()),
        "--shutdown-grace-period-secs=1",
        "--log-level=warn",
    ]
    command += ["--worker-startup-check-interval=1", *options, "--worker-urls", *(f"grpc://{each}" for each in workers)]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{ports['port']}"
        finally:
            process.terminate()


@dataclass
class Load:
    """What came of all requests, by prompt."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    running: set[str] = field(default_factory=set[str])
    """Those that have been asked and not answered."""
    caught: set[str] = field(default_factory=set[str])
    """Those that were running when processes were killed."""

    async def ask(self, client: Any, prompts: Sequence[str]) -> None:
        """One caller, who asks one after the other."""
        from openai import APIError

        for prompt in prompts:
            self.running.add(prompt)
            try:
                done = await client.completions.create(
                    model="target", prompt=prompt, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
                )
            except APIError as error:
                self.failed[prompt] = str(error)
            else:
                self.texts[prompt] = done.choices[0].text
            self.running.remove(prompt)


async def under_load(url: str, killed: Sequence[Child]) -> Load:
    """Ask for all texts, some at once, and kill these in the middle."""
    from openai import AsyncOpenAI

    load = Load()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="nobody asks", max_retries=0, timeout=120) as client:
        await eventually(lambda: status(f"{url}/readiness") == 200)
        callers = [asyncio.create_task(load.ask(client, PROMPTS[number::AT_ONCE])) for number in range(AT_ONCE)]
        await eventually(lambda: len(load.texts) >= AT_ONCE)
        load.caught = {*load.running}
        for child in killed:
            child.kill()
        await asyncio.gather(*callers)
    return load


def alone(many: Many) -> dict[str, str]:
    """The texts that our own client gets of a coordinator that is left."""
    with Client(many.other.address) as client:
        asked = {"max_tokens": TOKENS, "ignore_eos": True}
        return {prompt: client.generate(prompt, **asked).text for prompt in PROMPTS}


@pytest.mark.timeout(240)
async def test_before_two_coordinators_no_request_fails_though_one_of_them_and_a_verifier_are_killed(
    many: Many,
) -> None:
    with gateway(many.coordinators) as url:
        load = await under_load(url, [many.cluster.coordinator, many.cluster.verifiers[0]])
    assert load.failed == {}
    assert load.texts == alone(many)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "least_load", "cache_aware"])
async def test_before_verifiers_only_requests_that_ran_when_one_was_killed_fail_and_no_coordinator_is_needed(
    many: Many, policy: str
) -> None:
    with gateway(many.verifiers, f"--policy={policy}") as url:
        load = await under_load(url, [many.cluster.coordinator, many.cluster.verifiers[0]])
    assert load.failed.keys() <= load.caught
    expected = alone(many)
    assert load.texts == {prompt: expected[prompt] for prompt in load.texts}


@pytest.mark.timeout(240)
async def test_a_stream_through_a_gateway_ends_with_its_coordinator_and_does_not_look_whole(many: Many) -> None:
    from openai import APIError, AsyncOpenAI

    with gateway(many.coordinators) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="nobody asks", max_retries=0, timeout=120) as client:
            await eventually(lambda: status(f"{url}/readiness") == 200)
            asked = {"model": "target", "prompt": PROMPTS[0], "max_tokens": 400, "temperature": 0}
            stream = await client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
            ends = [(await anext(stream)).choices[0].finish_reason]
            with Client(many.other.address) as there:
                killed = many.other if there.cluster().running else many.cluster.coordinator
            killed.kill()

            async def read_on() -> None:
                async for chunk in stream:
                    ends.append(chunk.choices[0].finish_reason)

            with pytest.raises(APIError):
                await read_on()
    assert {*ends} == {None}

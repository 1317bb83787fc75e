"""Coordinators of their own processes, one of which is killed while a client has its quota there."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from specsplit.cli.drawn_port import DrawnPort
from specsplit.cli.local import Child
from specsplit.client import Client
from specsplit.errors import Exhausted
from specsplit.requests import GenerateEvent
from tests.support.redis_server import RedisServer, needs_redis
from tests.system.conftest import as_soon_as

POCKET = Path(__file__).parents[2] / "models" / "pocket" / "target"
pytestmark = needs_redis


@pytest.fixture
def coordinators(tmp_path: Path) -> Iterator[tuple[Child, Child]]:
    """Two of them and a verifier, and a server that they count with, which asks for a password."""
    (tmp_path / "password").write_text("hunter2")
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(tmp_path, password="hunter2"))
        settings = {
            "model": POCKET,
            "client_max_requests": 4,
            "quota_store": server.url,
            "quota_store_password_file": tmp_path / "password",
            "quota_store_timeout_ms": 60_000,
        }
        ports = [stack.enter_context(closing(DrawnPort("127.0.0.1:0"))) for _ in range(2)]

        def child(name: str, service: str, settings: Mapping[str, object]) -> Child:
            made = Child(name, service, settings, None)
            stack.callback(made.kill)
            made.wait_listening(60)
            return made

        both = [
            child(f"coordinator-{port.listen}", "coordinator", settings | {"listen": port.listen}) for port in ports
        ]
        where = ",".join(port.listen for port in ports)
        child("verifier", "verifier", {"model": POCKET, "coordinator": where, "paced_step_base_ms": 200.0})
        yield both[0], both[1]


def begun(client: Client) -> Generator[GenerateEvent, None, None]:
    """A stream that has its first token and many to come; tried again where shares hold for a while, since this machine is busy."""
    found: list[Generator[GenerateEvent, None, None]] = []

    def begins() -> bool:
        stream = client.stream("x", max_tokens=400, ignore_eos=True)
        with suppress(Exhausted):
            next(stream)
            found.append(stream)
        return bool(found)

    as_soon_as(begins)
    return found[0]


def refusal(client: Client, n: int) -> str:
    """Why a request for so many choices is refused; empty if it is let in."""
    try:
        client.generate("x", n=n, max_tokens=1)
    except Exhausted as error:
        return str(error)
    return ""


@pytest.mark.timeout(300)
def test_a_client_has_its_quota_at_two_processes_and_has_back_what_a_killed_one_held(
    coordinators: tuple[Child, Child],
) -> None:
    first, second = coordinators
    with Client(first.address) as here, Client(second.address) as there:
        for client in (here, there):
            as_soon_as(lambda client=client: client.cluster().coordinators == 2)
            as_soon_as(lambda client=client: "counted by the quota store" in client.cluster().quotas)
        streams = [begun(here) for _ in range(3)]
        last = begun(there)
        as_soon_as(lambda: "client_max_requests = 4; try again" in refusal(there, 1))
        first.kill()
        as_soon_as(lambda: refusal(there, 3) == "")
        last.close()
        del streams

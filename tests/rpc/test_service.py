"""The life of a service's process, with a backend that does what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from specsplit.errors import InvalidRequest, LoadError
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.rpc import Phase, Server, Service, dial, wait_until_serving
from specsplit.settings import CoordinatorSettings
from tests.support.eventually import eventually

SETTINGS = CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")


class Backend:
    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.idle = asyncio.Event()
        self.told: list[str] = []

    async def drained(self) -> None:
        self.told.append("drained")
        await self.idle.wait()

    async def close(self) -> None:
        self.told.append("closed")


def service_over(load: Callable[[], Backend]) -> Service[Backend]:
    async def loaded() -> Backend:
        return load()

    server = Server(SETTINGS, "coordinator", services=[])
    return Service(SETTINGS, server, CoordinatorMetrics(on=True), loaded)


async def test_it_serves_until_told_to_leave_then_drains_and_closes() -> None:
    backend = Backend()
    service = service_over(lambda: backend)
    address = await service.start()
    assert service.metrics_address.startswith("127.0.0.1:") and service.server.phase is Phase.SERVING
    running = asyncio.create_task(service.serve(signals=False))
    async with dial(address) as channel:
        await wait_until_serving(channel, 10)
    service.leave()
    await eventually(lambda: backend.told == ["drained"])
    assert not running.done()
    backend.idle.set()
    assert await asyncio.wait_for(running, 10) == 0
    assert backend.told == ["drained", "closed"]


async def test_a_backend_that_fails_ends_it_with_status_1() -> None:
    backend = Backend()
    backend.idle.set()
    service = service_over(lambda: backend)
    await service.start()
    backend.failed.set()
    assert await asyncio.wait_for(service.serve(signals=False), 10) == 1
    assert backend.told == ["drained", "closed"]


@pytest.mark.parametrize("shown", ["tls_ca", "token_file"])
async def test_what_it_could_never_show_its_peers_is_said_at_start(shown: str, tmp_path: Path) -> None:
    async def loaded() -> Backend:
        return Backend()

    settings = CoordinatorSettings.load(None, model="unused", listen="127.0.0.1:0", **{shown: tmp_path / "absent"})
    service = Service(settings, Server(settings, "coordinator", services=[]), CoordinatorMetrics(on=False), loaded)
    with pytest.raises(InvalidRequest, match=f"{shown}: cannot read"):
        await service.start()


async def test_what_cannot_be_loaded_leaves_nothing_open() -> None:
    def broken() -> Backend:
        raise LoadError("no such model")

    service = service_over(broken)
    with pytest.raises(LoadError, match="no such model"):
        await service.start()
    for bound in (service.server.bound, service.metrics_address):
        host, _, port = bound.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))

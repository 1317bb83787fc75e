"""What a client says of a server whose answers cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from specsplit.client import AsyncClient, Client
from specsplit.errors import Incompatible
from tests.support.garbage import garbling

CALLS: dict[str, tuple[Callable[[Client], object], Callable[[AsyncClient], Awaitable[object]]]] = {
    "GenerateResponse": (lambda client: client.generate("a"), lambda client: client.generate("a")),
    "GetModelInfoResponse": (lambda client: client.model_info(), lambda client: client.model_info()),
    "GetClusterResponse": (lambda client: client.cluster(), lambda client: client.cluster()),
    "GetPlanResponse": (lambda client: client.plan(), lambda client: client.plan()),
    "GetTracingResponse": (lambda client: client.tracing(), lambda client: client.tracing()),
    "SetPlanResponse": (lambda client: client.set_plan(), lambda client: client.set_plan()),
    "SetTracingResponse": (lambda client: client.set_tracing(), lambda client: client.set_tracing()),
    "HealthCheckResponse": (
        lambda client: client.wait_until_serving(5),
        lambda client: client.wait_until_serving(5),
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_that_is_none_is_told_with_its_name(name: str, caplog: pytest.LogCaptureFixture) -> None:
    blocking, asynchronous = CALLS[name]
    async with garbling() as address:
        async with AsyncClient(address) as client:
            with pytest.raises(Incompatible, match=f"the peer sent what is not a {name}"):
                await asynchronous(client)
        with Client(address) as client, pytest.raises(Incompatible, match=f"the peer sent what is not a {name}"):
            await asyncio.to_thread(blocking, client)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

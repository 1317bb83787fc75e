"""Streams of callers who may not make them any more, over real servers: they end, and those of others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.errors import PermissionDenied, SpecsplitError, Unauthenticated
from specsplit.identity import CallerRole, digest
from specsplit.rpc import CLUSTER_SERVICE, Context, Server, dial, from_rpc_error, ongoing
from specsplit.rpc.callers import Callers
from specsplit.settings import CoordinatorSettings, TransportSettings
from specsplit.v1 import cluster_pb2, cluster_pb2_grpc
from tests.rpc.test_callers import Tokens
from tests.support.eventually import eventually

MEMBER = CallerRole.MEMBER


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


class Lasting(cluster_pb2_grpc.ClusterServiceServicer):
    """Directs for as long as it is let, without end if it is `flooding`."""

    def __init__(self) -> None:
        self.open = 0
        self.flooding = False

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[cluster_pb2.JoinRequest], context: Context
    ) -> AsyncIterator[cluster_pb2.JoinResponse]:
        self.open += 1
        try:
            yield cluster_pb2.JoinResponse()
            while self.flooding:
                yield cluster_pb2.JoinResponse(registered=cluster_pb2.RegisteredDirective(heartbeat_interval_ms=50))
            await asyncio.Event().wait()
        finally:
            self.open -= 1


@asynccontextmanager
async def lasting(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Lasting]]:
    monkeypatch.setattr(ongoing, "LOOK_EVERY_S", 0.02)
    settings = CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0", tokens_file=tokens.file)
    server, servicer = Server(settings, "coordinator", services=[CLUSTER_SERVICE]), Lasting()
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    server.ready()
    try:
        yield server.bound, servicer
    finally:
        await server.stop()


@asynccontextmanager
async def joined(address: str, shown: Path) -> AsyncIterator[Any]:
    """A Join call that has its first directive."""
    async with dial(address, TransportSettings(token_file=shown)) as channel:
        call = cluster_pb2_grpc.ClusterServiceStub(channel).Join()
        await call.read()
        yield call
        call.cancel()


async def ended(call: Any) -> SpecsplitError:
    """What ends a call; it fails if that is nothing."""
    try:
        while await call.read():  # what ends it in order is false
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call ended in order")


async def test_the_stream_of_a_caller_ends_when_his_name_is_struck_and_those_of_others_go_on(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known, gone = tokens.know("known", MEMBER), tokens.know("gone", MEMBER)
    async with lasting(tokens, monkeypatch) as (address, servicer):
        async with joined(address, known) as stays, joined(address, gone) as struck:
            assert servicer.open == 2
            tokens.file.write_text("")
            tokens.know("known", MEMBER)
            error = await asyncio.wait_for(ended(struck), 10)
            assert isinstance(error, Unauthenticated)
            assert str(error).startswith("Join needs the role member: 'gone' is not known here any more")
            await eventually(lambda: servicer.open == 1)
            assert not stays.done()
        await eventually(lambda: servicer.open == 0)
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert vars(told)["specsplit_fields"]["caller"] == "gone"


async def test_a_stream_goes_on_with_another_token_of_its_caller_and_ends_when_his_role_is_taken(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tokens.know("alice", MEMBER)
    looks = list[object]()
    check = Callers.check_still
    monkeypatch.setattr(Callers, "check_still", lambda *args: (looks.append(1), check(*args)))
    async with lasting(tokens, monkeypatch) as (address, servicer), joined(address, shown) as call:
        await eventually(lambda: len(looks) == 1)
        tokens.file.write_text(tokens.file.read_text().replace(digest("secret-of-alice"), digest("another secret")))
        await eventually(lambda: len(looks) == 2)
        assert servicer.open == 1 and not call.done()
        tokens.file.write_text(tokens.file.read_text().replace("member", "client"))
        error = await asyncio.wait_for(ended(call), 10)
        assert isinstance(error, PermissionDenied) and str(error) == "Join needs the role member, and alice is client"
        await eventually(lambda: servicer.open == 0)


async def test_a_stream_ends_whose_caller_reads_nothing(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = tokens.know("alice", MEMBER)
    async with lasting(tokens, monkeypatch) as (address, servicer):
        servicer.flooding = True
        async with joined(address, shown):
            tokens.file.write_text("")
            await eventually(lambda: servicer.open == 0)

"""Real processes hand on whose a session is: from the token that a client shows to the drafter, which hears no name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc

from specsplit.cli.local import Child
from specsplit.cli.tokens import write
from specsplit.client import AsyncClient
from specsplit.identity import CallerRole, digest
from specsplit.membership import Register
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.memberships import Memberships
from specsplit.settings import TransportSettings
from specsplit.v1 import drafter_pb2, drafter_pb2_grpc
from specsplit.values import DrafterInfo, DrafterKind, Load

ROLES = {"alice": CallerRole.CLIENT, "bob": CallerRole.CLIENT, "member": CallerRole.MEMBER}


class Listening(drafter_pb2_grpc.DrafterServiceServicer):
    """A drafter that has nothing to say, and keeps what it was told of every session."""

    UpdateWeights = drafter_pb2_grpc.DrafterServiceServicer.UpdateWeights

    def __init__(self) -> None:
        self.opened: list[drafter_pb2.OpenEvent] = []
        self.address = ""

    async def Draft(  # noqa: N802 (the name is the protocol's)
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        async for message in request_iterator:
            self.opened += [event.open for event in message.events if event.HasField("open")]
            answers = [
                drafter_pb2.DraftResponseEvent(
                    session_id=event.session_id, grow=drafter_pb2.GrowEvent(commits=event.commit.number, resting=True)
                )
                for event in message.events
                if event.WhichOneof("event") in ("open", "commit")
            ]
            if answers:
                yield drafter_pb2.DraftResponse(events=answers)

    async def GetDrafterInfo(  # noqa: N802
        self, request: drafter_pb2.GetDrafterInfoRequest, context: grpc.aio.ServicerContext
    ) -> drafter_pb2.GetDrafterInfoResponse:
        raise AssertionError("no verifier asks")


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    drafter, server = Listening(), grpc.aio.server()
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)
    drafter.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield drafter
    finally:
        await server.stop(0)


@asynccontextmanager
async def cluster(
    model: Path, asked: Mapping[str, object], shown: TransportSettings
) -> AsyncIterator[tuple[str, Listening]]:
    """A coordinator and a verifier, both with the settings `asked`, and a drafter that listens -> where the first is, the drafter."""
    async with AsyncExitStack() as stack:
        drafter = await stack.enter_async_context(listening())
        common = {"listen": "127.0.0.1:0", "model": model, **asked, **as_options(shown)}

        async def child(service: str, **options: object) -> str:
            started = Child(service, service, {**common, **options}, None)
            stack.callback(started.kill)
            return await asyncio.to_thread(started.wait_listening, 60)

        coordinator = await child("coordinator")
        info = DrafterInfo(DrafterKind.NGRAM, "", None, 4096)
        membership = Memberships(Coordinators(coordinator, shown), Register("d1", drafter.address, info, 64), Load)
        joined = asyncio.create_task(membership.run())
        stack.callback(joined.cancel)
        await asyncio.wait_for(membership.wait_joined(), 60)
        await child("verifier", coordinator=coordinator, member_id="v1")
        yield coordinator, drafter


def as_options(shown: TransportSettings) -> Mapping[str, object]:
    return {} if shown.token_file is None else {"token_file": shown.token_file}


async def ask(coordinator: str, shown: TransportSettings, n: int = 1) -> None:
    async with AsyncClient(coordinator, shown) as client:
        async with asyncio.timeout(120):
            while len((await client.cluster()).members) < 2:
                await asyncio.sleep(0.05)
        await client.generate("abc", max_tokens=3, n=n, timeout_s=120)


async def test_a_token_has_one_scope_two_have_two_and_who_shows_none_has_none(alphabet: Path, tmp_path: Path) -> None:
    write(tmp_path, ROLES)
    shown = {
        name: TransportSettings(token_file=tmp_path / f"{role}s" / f"{name}.token") for name, role in ROLES.items()
    }
    asked = {"tokens_file": tmp_path / "members/tokens.toml"}
    async with cluster(alphabet, asked | {"anonymous_clients": True}, shown["member"]) as (coordinator, drafter):
        await ask(coordinator, shown["alice"])
        await ask(coordinator, shown["bob"], n=2)
        await ask(coordinator, TransportSettings())
        await ask(coordinator, shown["alice"])
    alice, bob, bobs_second, nobody, alice_again = [event.scope for event in drafter.opened]
    assert alice == alice_again and bob == bobs_second and alice != bob
    assert nobody == b""
    for event in drafter.opened:
        said = event.SerializeToString()
        for name in ("alice", "bob"):
            token = (tmp_path / "clients" / f"{name}.token").read_text().strip()
            known = (name, token, digest(token))
            assert not any(each.encode() in said for each in known) and bytes.fromhex(digest(token))[:8] not in said


async def test_where_nobody_is_asked_who_he_is_no_session_is_like_another(alphabet: Path) -> None:
    async with cluster(alphabet, {}, TransportSettings()) as (coordinator, drafter):
        await ask(coordinator, TransportSettings())
        await ask(coordinator, TransportSettings())
    assert [event.scope for event in drafter.opened] == [b"", b""]

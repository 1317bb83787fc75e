"""The channels to verifiers: dialled anew when there is another certificate to show, while calls go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from specsplit.clock import ManualClock
from specsplit.generation.gathering import Gathering
from specsplit.membership import Register
from specsplit.observe import Tracing
from specsplit.rpc import VERIFIER_SERVICE, Server, caller
from specsplit.sessions import Begin, DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.settings import TransportSettings, VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import (
    FinishReason,
    ModelInfo,
    PlanChanges,
    Sampling,
    SpeculationStatistics,
    Stopping,
    TraceScope,
    Usage,
    Vocabulary,
)
from specsplit_coordinator.members.channel_pool import ChannelPool, PooledChannel
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.verifier_client import VerifierClient
from tests.support.carrying import Carrying
from tests.support.certificates import Authority, Certificate
from tests.support.pulled import decoded

HERE = Vocabulary(50)
TRACING = Tracing("coordinator", TraceScope())
REQUEST = DecodeRequest("one", (1, 2), Sampling(), Stopping(), PlanChanges())


class Named(Carrying):
    """Notes who calls, and ends no session before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.called_by: list[str] = []
        self.may_end = asyncio.Event()

    async def carried(self, begin: Begin) -> AsyncIterator[DecodeEvent]:
        self.called_by.append(caller().name)
        yield Tokens((5,), 0, SpeculationStatistics(steps=1))
        await self.may_end.wait()
        yield Finished(FinishReason.STOP, 0, Usage(2, 1), SpeculationStatistics(steps=1))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def own(authority: Authority, tmp_path: Path) -> Certificate:
    """The coordinator's, as it is at first."""
    made = Certificate(tmp_path / "own.pem", tmp_path / "own.key")
    made.replace_by(authority.certify("old"))
    return made


@pytest.fixture
def shown(authority: Authority, own: Certificate) -> TransportSettings:
    return TransportSettings(tls_ca=authority.pem, **own.shown)


def member_at(address: str) -> MemberState:
    return Registry(HERE, ManualClock(), 9.0).register(Register("v1", address, ModelInfo("toy", HERE, 512), 4))


async def test_the_next_call_shows_the_new_certificate_and_a_running_one_goes_on(
    authority: Authority, own: Certificate, shown: TransportSettings, tmp_path: Path
) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text('old = ["member"]\nnew = ["member"]\n')
    host = authority.certify("host")
    settings = VerifierSettings(
        model=tmp_path, listen="127.0.0.1:0", tls_client_ca=authority.pem, roles_file=roles, **host.shown
    )
    server, named = Server(settings, "verifier", services=[VERIFIER_SERVICE]), Named()
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(named, server.grpc)
    member = member_at(await server.start())
    server.ready()
    client = VerifierClient(shown, TRACING, Gathering(0))
    async with (
        aclosing(decoded(client, member, REQUEST)) as running,
        aclosing(decoded(client, member, REQUEST)) as beside,
        aclosing(decoded(client, member, REQUEST)) as after,
    ):
        await anext(running)
        await anext(beside)
        own.replace_by(authority.certify("new"))
        await anext(after)
        assert named.called_by == ["old", "old", "new"]
        roles.write_text('new = ["member"]\n')  # the old one is nobody any more, but for what runs
        named.may_end.set()
        for session in (running, beside, after):
            assert [type(event) for events in [events async for events in session] for event in events] == [Finished]
    await client.close()
    await server.stop()


async def test_there_is_one_channel_until_the_certificate_changes_and_the_old_one_is_closed_behind_its_last_call(
    authority: Authority, own: Certificate, shown: TransportSettings
) -> None:
    channels, member = ChannelPool(shown, TRACING), member_at("127.0.0.1:9")
    with channels.to(member) as one:
        with channels.to(member) as same:
            assert same is one
            own.replace_by(authority.certify("new"))
            with channels.to(member) as other:
                assert other is not one
        await closings(channels)
        assert not is_closed(one), "a call is on it"
    await closings(channels)
    assert is_closed(one) and not is_closed(other)
    with channels.to(member) as again:
        assert again is other
        own.replace_by(authority.certify("newest"))
    with channels.to(member) as newest:
        await closings(channels)
        assert is_closed(other) and not is_closed(newest)
    await channels.close()
    assert is_closed(newest)


async def test_a_lost_verifier_takes_all_its_channels_with_it(
    authority: Authority, own: Certificate, shown: TransportSettings
) -> None:
    channels, member = ChannelPool(shown, TRACING), member_at("127.0.0.1:9")
    with channels.to(member) as one:
        own.replace_by(authority.certify("new"))
        with channels.to(member) as other:
            for callback in member.on_lost:
                callback()
            await closings(channels)
            assert is_closed(one) and is_closed(other)
    await channels.close()


async def closings(channels: ChannelPool) -> None:
    """Return when what is being closed is."""
    await asyncio.gather(*vars(channels)["_closing"])


def is_closed(pooled: PooledChannel) -> bool:
    return pooled.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN

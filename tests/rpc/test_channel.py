"""Connections over networks and machines that are slow."""

from __future__ import annotations

import socket

import grpc
import pytest

from benchmarks.delay_proxy import delayed
from specsplit.rpc import dial
from specsplit.settings import TransportSettings
from tests.rpc.toy import get_cluster, serving


async def test_a_connection_is_made_where_a_round_trip_takes_long() -> None:
    async with serving() as (server, _):
        with delayed(server.bound, 0.25) as proxied:
            async with dial(proxied.address) as channel:
                await get_cluster(channel)


async def test_an_attempt_to_connect_ends_after_the_time_that_is_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts, and nobody ever says a word
        host, port = mute.getsockname()[:2]
        async with dial(f"{host}:{port}", TransportSettings.load(connect_timeout_s=0.2)) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="timed out"):
                await get_cluster(channel)

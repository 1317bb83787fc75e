"""A port that is drawn for a process before it listens."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest

from specsplit.cli.drawn_port import DrawnPort
from specsplit.rpc.options import server_options
from specsplit.settings import TransportSettings


async def _serves(listen: str) -> int:
    """The port at which a server as ours are listens, and is reached."""
    server = grpc.aio.server(options=server_options(TransportSettings()))
    port = server.add_insecure_port(listen)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
    await server.stop(0)
    return port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_server_listens_at_a_port_that_was_drawn_for_it_while_it_is_kept_and_later(host: str) -> None:
    port = DrawnPort(f"{host}:0")
    assert port.drawn
    number = int(port.listen.removeprefix(f"{host}:"))
    assert asyncio.run(_serves(port.listen)) == number
    port.close()
    assert asyncio.run(_serves(port.listen)) == number


def test_while_it_is_kept_nobody_who_asks_for_any_port_is_given_it() -> None:
    port = DrawnPort("127.0.0.1:0")
    others = [DrawnPort("127.0.0.1:0") for _ in range(200)]
    assert len({each.listen for each in (port, *others)}) == 201
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(port.listen.rpartition(":")[2])))
    for each in (port, *others):
        each.close()
        each.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:7070", "no.such.host.invalid:0", "203.0.113.1:0"])
def test_nothing_is_drawn_where_the_port_is_given_or_the_host_is_not_this_machine(listen: str) -> None:
    port = DrawnPort(listen)
    assert (port.listen, port.drawn) == (listen, False)

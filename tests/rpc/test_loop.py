"""The event loop of a service is woken once for all that gRPC has for it, and loses nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import pytest

from specsplit.rpc.loop import ServiceLoop, polls

EVENTS = 2000


class PollerCompletionQueue:
    """What grpc.aio has under this name: events come in by other threads, each with a byte that wakes the loop."""

    def __init__(self) -> None:
        self.read, self._write = socket.socketpair()
        self._queue, self.seen, self.wakes = deque[int](), list[int](), 0

    def push(self, event: int) -> None:
        self._queue.append(event)
        self._write.send(b"1")

    def handle(self, loop: asyncio.AbstractEventLoop) -> None:
        self.read.recv(1)
        self.wakes += 1
        while self._queue:
            self.seen.append(self._queue.popleft())

    def close(self) -> None:
        self.read.close()
        self._write.close()


async def _seen(poller: PollerCompletionQueue, events: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_reader(poller.read, partial(poller.handle, loop))
    async with asyncio.timeout(30):
        while len(poller.seen) < events:
            await asyncio.sleep(0)
    loop.remove_reader(poller.read)


@pytest.mark.parametrize("events", [1, 10])
def test_what_is_there_wakes_the_loop_once(events: int) -> None:
    poller = PollerCompletionQueue()
    for event in range(events):
        poller.push(event)

    async def look() -> None:
        await _seen(poller, events)
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        runner.run(look())
    assert (poller.seen, poller.wakes) == ([*range(events)], 1)
    poller.close()


def test_what_comes_meanwhile_is_never_lost() -> None:
    poller = PollerCompletionQueue()
    pushing = threading.Thread(target=lambda: [poller.push(event) for event in range(EVENTS)])
    pushing.start()
    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        runner.run(_seen(poller, EVENTS))
    pushing.join()
    assert poller.seen == [*range(EVENTS)]
    poller.close()


class Watched(ServiceLoop):
    """Notes whose callbacks it was given."""

    def __init__(self) -> None:
        self.known: list[bool] = []
        super().__init__()

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self.known.append(polls(callback))
        super().add_reader(fd, callback, *args)


async def _count(request: bytes, context: object) -> AsyncIterator[bytes]:
    for number in range(int(request)):
        yield b"%d" % number


async def _answers() -> list[list[int]]:
    """Of ten streams at once, over real gRPC."""
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("a", {"Count": grpc.unary_stream_rpc_method_handler(_count)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        count = channel.unary_stream("/a/Count")

        async def read(most: int) -> list[int]:
            return [int(message) async for message in count(b"%d" % most)]

        answers = await asyncio.gather(*map(read, range(0, 100, 10)))
    await server.stop(None)
    return answers


def test_it_is_the_callback_of_the_grpc_that_is_installed() -> None:
    with asyncio.Runner(loop_factory=Watched) as runner:
        answers = runner.run(_answers())
        loop = runner.get_loop()
        assert isinstance(loop, Watched) and loop.known == [True]
    assert answers == [[*range(most)] for most in range(0, 100, 10)]

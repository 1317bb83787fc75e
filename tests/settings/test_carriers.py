"""The longest time that a setting may hold is one that every kind of wait really takes."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage] (where its users find it)

from specsplit.values.bounds import MOST_SECONDS


async def test_the_event_loop_waits_so_long() -> None:
    timer = asyncio.get_running_loop().call_later(MOST_SECONDS, int)
    async with asyncio.timeout(MOST_SECONDS):
        await asyncio.wait({asyncio.create_task(asyncio.sleep(0))}, timeout=MOST_SECONDS)
    timer.cancel()


def _event() -> None:
    event = threading.Event()
    threading.Timer(0.01, event.set).start()
    assert event.wait(MOST_SECONDS)


def _queue() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    threading.Timer(0.01, waiting.put, (1,)).start()
    assert waiting.get(timeout=MOST_SECONDS) == 1


def _socket() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(MOST_SECONDS)
        threading.Timer(0.01, other.send, (b"x",)).start()
        assert one.recv(1) == b"x"


def _store() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=MOST_SECONDS))
    threading.Timer(0.01, store.set, ("key", "value")).start()
    store.wait(["key"], timedelta(seconds=MOST_SECONDS))


@pytest.mark.parametrize("wait", [_event, _queue, _socket, _store])
def test_a_thread_waits_so_long(wait: Callable[[], None]) -> None:
    wait()

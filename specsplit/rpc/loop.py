"""The event loop of a service, which takes what gRPC has for it all at once.

A thread of grpc.aio waits for what happens on connections. It puts every event into a queue, writes a byte into a socket that wakes the
event loop, and the loop's callback reads one byte and empties the queue. So the loop, woken for ten events, finds nine bytes more and goes
round nine more times for nothing, which takes more time than a token does. Here the bytes behind the first are read away before.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_POLLER: Final = "PollerCompletionQueue"
"""The class in grpc.aio whose callback it is. Were it called otherwise in another release, the loop would do as any other."""
_MOST: Final = 4096
"""Bytes that are looked at, at once."""


class ServiceLoop(asyncio.SelectorEventLoop):
    """An event loop for grpc.aio, the only one of its process: gRPC wakes all loops of a process through one socket."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Call `callback` when there is something to read; gRPC's once for all that there is by then."""
        once = isinstance(fd, socket.socket) and polls(callback)
        super().add_reader(fd, partial(_last_alone, fd, callback) if once else callback, *args)


def polls(callback: Callable[..., Any]) -> bool:
    """Whether it is the callback by which grpc.aio empties its queue."""
    method = callback.func if isinstance(callback, partial) else callback
    return type(getattr(method, "__self__", None)).__name__ == _POLLER


def _last_alone(waking: socket.socket, callback: Callable[..., Any], *args: Any) -> None:
    """Leave one byte for `callback`.

    Every event is in the queue before its byte is written, so those whose bytes are read here are seen; a later byte wakes again.
    """
    waiting = len(waking.recv(_MOST, socket.MSG_PEEK))
    if waiting > 1:
        waking.recv(waiting - 1)
    callback(*args)

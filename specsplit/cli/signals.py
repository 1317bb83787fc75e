"""Signals of commands that have children, or wait where Python cannot hear of them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.05
"""Seconds after which a signal that was not heard is sent again."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that both take the children down in the same order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ctrl_c_at_once() -> Iterator[None]:
    """Inside, Ctrl-C ends the process with status 130 and nothing else: an import may turn the exception that it is elsewhere into another.

    Nothing may be under way that has to be undone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_heard() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt in the main thread though that waits in C for something else.

    A signal wakes such a wait only while it waits: one that came a moment before it began, or that another thread of the process was
    given, was lost until the next key. So it is sent to the main thread until its handler has run.
    """
    heard = threading.Event()
    main = threading.main_thread().ident

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def repeat() -> None:
        """Read the signals that have a handler, a byte each, until the other end is closed."""
        while received := reader.recv(1):
            while main is not None and received[0] == signal.SIGINT and not heard.wait(_AGAIN_S):
                signal.pthread_kill(main, signal.SIGINT)

    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=repeat, name="ctrl-c", daemon=True)
    handler = signal.signal(signal.SIGINT, interrupt)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        heard.set()
        signal.set_wakeup_fd(descriptor)
        writer.close()
        thread.join()
        reader.close()
        signal.signal(signal.SIGINT, handler)

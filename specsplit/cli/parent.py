"""A process that leaves with the one that started it."""

from __future__ import annotations

import os
import signal
import threading


def leave_with_stdin() -> None:
    """Send this process SIGTERM when its stdin ends; returns at once.

    The parent holds the other end of the pipe. However the parent ends, SIGKILL included, the pipe ends with it.
    """
    threading.Thread(target=_wait_for_end, name="parent", daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)

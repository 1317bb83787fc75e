"""`python -m specsplit.cli.child serve ...`: as `python -m specsplit`, but it drains and leaves when stdin ends.

The local cluster starts its services so and holds the other end of the pipe. However the parent ends, SIGKILL included, the pipe ends
with it, and nobody who runs is left behind; a child that is stopped (SIGSTOP) leaves when it goes on, and not before.
"""

from __future__ import annotations

import os
import signal
import threading

from specsplit.cli import app


def leave_with_stdin() -> None:
    """Send this process SIGTERM when its stdin ends; returns at once."""
    threading.Thread(target=_wait_for_end, name="parent", daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    leave_with_stdin()
    app(prog_name="specsplit")

"""A process that this one starts, reads and ends."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from types import MappingProxyType
from typing import cast

from specsplit.errors import Unavailable

_TAIL = 40
"""Lines of its output that are kept for the message when it dies."""

Listener = Callable[[str, str], None]
"""Called with the name of a process and one line of its output."""


class Process:
    """A process, with the end of its output. It gets a pipe as stdin, which ends when this process does."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        listener: Listener | None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Starts it. `environment`: what it gets beside the environment of this process."""
        self.name = name
        self._listener = listener
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self.dismissed = False
        """True if it was told to end."""
        self.process = Popen(
            command,
            stdin=PIPE,  # nothing is written: the process leaves when it ends
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then takes its processes down in order
        )
        self._reader = threading.Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    @property
    def tail(self) -> str:
        return "\n".join(self._tail)

    @property
    def last_line(self) -> str:
        """The last line of its output that is not empty."""
        return next((line for line in reversed(self._tail) if line.strip()), "(none)")

    def require_alive(self) -> None:
        """Raise Unavailable, with the end of its output, if the process is over."""
        if not self.alive:
            self._reader.join(1)
            raise Unavailable(
                f"{self.name} ended with status {self.process.returncode}; its last line: {self.last_line}"
            )

    def terminate(self) -> None:
        """Send SIGTERM, upon which it drains and exits."""
        self.dismissed = True
        if self.alive:
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self.dismissed = True
        if self.alive:
            self.process.kill()
        self.wait(10)

    def suspend(self) -> None:
        """Send SIGSTOP: the process is there and says nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its exit status; None if it still runs after `timeout_s`."""
        try:
            status = self.process.wait(timeout_s)
        except TimeoutExpired:
            return None
        self._reader.join(1)
        return status

    def heard(self, line: str) -> None:
        """Take in one line of its output, on the thread that reads it."""
        self._tail.append(line)
        if self._listener is not None:
            self._listener(self.name, line)

    def _read(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process.stdin, self.process.stdout as lines:
            for line in lines:
                self.heard(line.rstrip("\n"))


def arguments(options: Mapping[str, object]) -> list[str]:
    """Make command-line options of settings; None is left out, and a tuple is several values of one option."""
    made: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            made.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            made += [option, *map(str, cast("tuple[object, ...]", value))]
        elif value is not None:
            made += [option, str(value)]
    return made

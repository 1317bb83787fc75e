"""A program at a terminal of its own: what it shows is read, and keys are pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_ORDERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OWN = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONUTF8", "PYTHONIOENCODING")
"""What would change what is shown."""
_CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal that of the session, so that Ctrl-C is a signal, and becomes the program."""
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


class Terminal:
    """The side of a terminal where a person sits."""

    def __init__(self, command: Sequence[str], columns: int = 80, **environment: str) -> None:
        """Start `command` there."""
        self._end, other = pty.openpty()
        termios.tcsetwinsize(other, (40, columns))
        kept = {name: value for name, value in os.environ.items() if name not in _OWN}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, *command],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**kept, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(other)
        self.shown = ""
        """Everything so far, with the orders to the terminal."""
        self._seen = 0
        """Characters of the text that were waited for."""

    @property
    def text(self) -> str:
        """Everything that was shown so far, without colours and with ends of lines as in a file."""
        return _ORDERS.sub("", self.shown).replace("\r\n", "\n")

    def press(self, keys: str) -> None:
        """Type something; a line ends with \\r."""
        os.write(self._end, keys.encode())

    def until(self, expected: str, within_s: float = 60.0) -> str:
        """Wait until this was shown behind what was waited for before -> what came up to it, without colours."""
        deadline = time.monotonic() + within_s
        seen = self._seen
        while (found := self.text.find(expected, seen)) < 0:
            assert time.monotonic() < deadline, f"{expected!r} was not shown within {within_s} s:\n{self.text}"
            assert self._read(), f"{expected!r} was not shown before the end:\n{self.text}"
        self._seen = found + len(expected)
        return self.text[seen:found]

    def wait(self, within_s: float = 60.0) -> int:
        """Wait for the end of the program -> its exit status."""
        while self._read():
            pass
        return self.process.wait(within_s)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def _read(self) -> bool:
        """Read what there is, or wait for it a moment. False if nothing will come any more."""
        ready, _, _ = select.select([self._end], [], [], 0.2)
        if ready:
            try:
                data = os.read(self._end, 65_536)
            except OSError:  # Linux says so when the program has left
                return False
            self.shown += data.decode(errors="replace")
        return True


@contextmanager
def at_terminal(command: Sequence[str], columns: int = 80, **environment: str) -> Iterator[Terminal]:
    """A program at a terminal, which is ended at the end."""
    terminal = Terminal(command, columns, **environment)
    try:
        yield terminal
    finally:
        terminal.close()

"""Running programs and telling how it goes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL = 40
"""Lines of a failed program's output that are shown."""


class Failed(Exception):
    """Something did not go as it must; the sentence says what."""


def expect(holds: bool, sentence: str) -> None:
    """Raises Failed unless it holds."""
    if not holds:
        raise Failed(sentence)


class Progress:
    """A line per event, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def say(self, sentence: str) -> None:
        """One line."""
        print(f"containers: {self.seconds:5.1f} s  {sentence}", flush=True)


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> str:
    """What the program writes, stderr included. Raises Failed with the end of that if it fails or takes too long."""
    name = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command,
            env=env,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{name}: not done after {timeout_s:g} s\n{_tail(late.output)}") from late
    except OSError as error:
        raise Failed(f"{name}: {error.strerror}") from error
    if done.returncode:
        raise Failed(f"{name}: exit status {done.returncode}\n{_tail(done.stdout)}")
    return done.stdout


def _tail(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    return "\n".join(text.splitlines()[-TAIL:])

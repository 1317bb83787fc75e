"""A service in several processes below torchrun, which starts them once more if one of them dies.

`torchrun` is started as users start it, from nothing. `forked_torchrun` is the same program, but forked, as its children are, from a
process that has torch and transformers in memory: importing them takes each process seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from tests.support.forked import FORKING, Forked, be
from tests.support.ranks import free_port, renew_threads


class Torchrun:
    """torchrun's own process, and what it writes, which is what its children write too."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def children(self) -> list[int]:
        """The processes of the service by number."""
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def output(self) -> str:
        """All that was written so far."""
        return self._log.read_text(errors="replace")

    def signal(self, number: int, what: int) -> None:
        """Send a signal to one process of the service."""
        os.kill(self.children[number], what)

    def wait(self) -> int:
        """The exit status, once it is over. Raises TimeoutExpired after a minute."""
        return self._process.wait(60)


@contextmanager
def torchrun(processes: int, *serve: object, log: Path) -> Iterator[Torchrun]:
    """`specsplit serve` with these words in so many processes; told to end on the way out."""
    command = [sys.executable, "-m", *_words(processes, serve)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
    with _ended(process):
        yield Torchrun(process, log)


@contextmanager
def forked_torchrun(processes: int, *serve: object, log: Path) -> Iterator[Torchrun]:
    """`torchrun`, forked."""
    words = _words(processes, serve)
    log.touch()
    process = Forked(FORKING.Process(target=_launch, args=(words, log)), words)
    with _ended(process):
        yield Torchrun(process, log)


def _words(processes: int, serve: Sequence[object]) -> list[str]:
    words = [
        *("torch.distributed.run", "--nproc-per-node", processes, "--max-restarts", 1),
        *("--master-addr", "127.0.0.1", "--master-port", free_port(), "-m", "specsplit", "serve", *serve),
    ]
    return list(map(str, words))


@contextmanager
def _ended(process: subprocess.Popen[bytes] | Forked) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _launch(words: Sequence[str], log: Path) -> None:
    """Be torchrun, whose children are forked."""
    os.setsid()
    with log.open("wb") as sink:
        for number in (1, 2):
            os.dup2(sink.fileno(), number)
    torch.set_num_threads(1)  # a pool of threads would not live through the fork
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess_handler, "Popen", ForkedChild)
        be(words)


class ForkedChild(Forked):
    """What torchrun uses of `subprocess.Popen`, for `python -u -m MODULE ARGUMENTS`."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], **_: object) -> None:
        """It has a session of its own, and writes where torchrun does."""
        super().__init__(get_context("fork").Process(target=_serve, args=(args[args.index("-m") + 1 :], env)), args)


def _serve(words: Sequence[str], env: Mapping[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    renew_threads()
    be(words)

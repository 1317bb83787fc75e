"""Services forked from one process that has torch and transformers in memory: each is a process of its own, without seconds of imports.

What such a process runs is what `LocalCluster` starts; tests/cli/test_local_cluster.py starts it from nothing, as users do.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock

import pytest

from specsplit.cli import process

FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "specsplit.cli",
        "specsplit_coordinator.edge.service",
        "specsplit_drafter.edge.service",
        "specsplit_drafter.kinds.heads",
        "specsplit_drafter.kinds.model_proposer",
        "specsplit_drafter.kinds.standalone",
        "specsplit_verifier.edge.service",
        "torch.distributed.run",
        "transformers.models.llama.modeling_llama",
        "tests.support.frozen",  # the last
    ]
)


class Forked:
    """A process that was forked, as `subprocess.Popen` has it."""

    def __init__(self, process: BaseProcess, args: Sequence[str]) -> None:
        """Start `process`. `args` are the words that it is run as."""
        self._process = process
        self._polling = Lock()
        self.args = args
        process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with self._polling:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        with self._polling:
            self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class ForkedPopen(Forked):
    """What `specsplit.cli.process` uses of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], *, errors: str, env: Mapping[str, str], **_: object) -> None:
        """`command` is `python -m MODULE ARGUMENTS`. It has pipes as stdin and stdout, stderr in stdout, a session of its own, the cores of
        the thread that starts it, and what `env` holds for specsplit.
        """
        cores, told = os.sched_getaffinity(0), {name: env[name] for name in env if name.startswith("SPECSPLIT_")}
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        with Connection(its_stdin, writable=False) as reads, Connection(its_stdout, readable=False) as writes:
            super().__init__(
                FORKING.Process(target=_run, args=(command[2:], reads, writes, cores, told), daemon=True), command
            )
        self.stdin = os.fdopen(stdin, "w")
        self.stdout = os.fdopen(stdout, errors=errors)


def _run(
    words: Sequence[str], reads: Connection, writes: Connection, cores: set[int], environment: Mapping[str, str]
) -> None:
    """Be `python -m MODULE ARGUMENTS`, on these cores, and with this beside the environment."""
    os.environ.update(environment)
    os.setsid()
    os.sched_setaffinity(0, cores)
    for file, ours in ((reads, (0,)), (writes, (1, 2))):
        for number in ours:
            os.dup2(file.fileno(), number)
        file.close()
    be(words)


def be(words: Sequence[str]) -> None:
    """Be `python -m MODULE ARGUMENTS`, of which these are the words from MODULE on."""
    sys.argv = [*words]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


@contextmanager
def forking() -> Iterator[None]:
    """In here local clusters fork their services."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "Popen", ForkedPopen)
        yield


def ready() -> None:
    """Start the process that services are forked from, and wait until it has imported everything."""
    first = FORKING.Process(target=int)
    first.start()
    first.join()

"""A service in several processes below torchrun, started as users start it: from nothing, and once more if one of them dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ranks import free_port


class Torchrun:
    """torchrun's own process, and what it writes, which is what its children write too."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
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
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", processes, "--max-restarts", 1),
        *("--master-addr", "127.0.0.1", "--master-port", free_port(), "-m", "specsplit", "serve", *serve),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as sink:
        process = subprocess.Popen(list(map(str, command)), stdout=sink, stderr=sink, env=environment)
    try:
        yield Torchrun(process, log)
    finally:
        process.terminate()
        process.wait(60)

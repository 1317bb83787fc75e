"""A group of verifier ranks under torchrun's agent, beside a coordinator that runs already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.ports import free_ports
from specsplit.client import Client
from specsplit.errors import DeadlineExceeded, Unavailable
from specsplit.membership import Member
from specsplit.values import ModelInfo

START_S = 300.0


class RankGroup:
    """A context manager: inside it all ranks have joined. If one dies, all are started again, `restarts` times at most."""

    def __init__(
        self, model: Path, size: int, coordinator: str, logs: Path, *, restarts: int = 0, **settings: object
    ) -> None:
        """`logs` is a folder for what the ranks write; `settings` are those of every rank by name."""
        self.size = size
        self._coordinator = coordinator
        self._logs = logs
        self._metrics_port = free_ports(size + 1)
        options: dict[str, object] = {
            "model": model, "dp_size": size, "coordinator": coordinator,
            "metrics_listen": f"127.0.0.1:{self._metrics_port}", **settings,
        }  # fmt: skip
        self._command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "--max-restarts", str(restarts),
            "--master-addr", "127.0.0.1", "--master-port", str(self._metrics_port + size), "--redirects", "3", "--log-dir", str(logs),
            "-m", "specsplit", "serve", "verifier",
            *_words(options),
        ]  # fmt: skip
        self._agent: subprocess.Popen[bytes] | None = None

    @property
    def metrics(self) -> list[str]:
        """Where the ranks tell their metrics, by rank."""
        return [f"http://127.0.0.1:{self._metrics_port + rank}/metrics" for rank in range(self.size)]

    @property
    def pids(self) -> dict[int, int]:
        """The processes that there are, by rank."""
        assert self._agent is not None, "the group has not been started"
        children = Path(f"/proc/{self._agent.pid}/task/{self._agent.pid}/children").read_text().split()
        found = {rank_of(int(pid)): int(pid) for pid in children}
        return {rank: pid for rank, pid in found.items() if rank is not None}

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send one rank a signal. Nothing happens if it is gone."""
        pid = self.pids.get(rank)
        if pid is not None:
            os.kill(pid, number)

    def require_alive(self) -> None:
        """Raise Unavailable if the agent, which starts ranks again, is over."""
        if self._agent is None or self._agent.poll() is not None:
            raise Unavailable(f"torchrun is over, and the ranks of its group with it; {self._logs} says why")

    def whole(self, client: Client) -> bool:
        """True if all ranks are in the cluster now."""
        return is_whole(client.cluster(timeout_s=30).members, self.size)

    def wait_whole(self, client: Client, timeout_s: float = START_S) -> None:
        """Return once all ranks have joined. Raises Unavailable, DeadlineExceeded."""
        deadline = time.monotonic() + timeout_s
        while not self.whole(client):
            self.require_alive()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"the {self.size} ranks did not join within {timeout_s:g} s")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        self._agent = subprocess.Popen(self._command, env=environment, start_new_session=True)
        try:
            with Client(self._coordinator) as client:
                self.wait_whole(client)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._agent is not None, "the group has been started"
        self._agent.terminate()
        try:
            self._agent.wait(60)
        except subprocess.TimeoutExpired:
            for pid in (*self.pids.values(), self._agent.pid):
                os.kill(pid, signal.SIGKILL)
            self._agent.wait()


def _words(options: Mapping[str, object]) -> list[str]:
    """Settings as options of the command line."""
    words: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        words += (
            [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        )
    return words


def is_whole(members: tuple[Member, ...], size: int) -> bool:
    """True if so many ranks of one group are there, and nothing of another group is."""
    ranks = [member.group for member in members if isinstance(member.role, ModelInfo)]
    return len(ranks) == size and len({None if rank is None else rank.group_id for rank in ranks}) == 1


def is_parked(members: tuple[Member, ...]) -> bool:
    """True if every rank says that it is parked, and wants no wave."""
    waves = [member.wave for member in members if member.group is not None]
    return all(wave is not None and wave.parked and not wave.wanted for wave in waves)


def rank_of(pid: int) -> int | None:
    """The rank that a process is, as its environment says; None if it is none, or gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)

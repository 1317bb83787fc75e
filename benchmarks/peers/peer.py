"""A peer as the benchmark sees it: a process that is asked for texts, one line each way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parents[2]
_STOP_S: Final = 30.0


class PeerError(Exception):
    """A peer's process ended before it answered."""


@dataclass(frozen=True)
class Peer:
    """One engine, with drafting or without."""

    name: str
    module: str
    """Below `benchmarks.peers`."""
    python: Path
    """The interpreter of its environment."""
    model: Path
    drafts: bool = False
    exact: bool = True
    """It has the weights as they are, so its texts have to be everybody's."""


class Timed(NamedTuple):
    """What a peer wrote."""

    seconds: float
    texts: list[list[int]]


class Running:
    """A peer's process, loaded."""

    def __init__(self, peer: Peer, process: subprocess.Popen[str]) -> None:
        """Waits until it is loaded. Raises PeerError if it cannot be."""
        self.peer: Final = peer
        self._process: Final = process
        self.load_s: Final = float(self._line()["ready"]["load_s"])

    def ask(self, prompts: Sequence[Sequence[int]], new: int, at_once: int) -> Timed | str:
        """Have `new` tokens written to each prompt, so many prompts at once; or why it does not offer that. Raises PeerError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "new": new, "at_once": at_once}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(f"{self.peer.name} ended") from error
        answer = self._line()
        return str(answer["cannot"]) if "cannot" in answer else Timed(answer["seconds"], answer["texts"])

    @property
    def resident_gb(self) -> float:
        """Memory of its processes, what several share counted once, in GB."""
        return sum(map(_proportional, tree_of(self._process.pid))) / 1e9

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.peer.name} ended with status {self._process.wait()}")
        return json.loads(line)


@contextmanager
def running(peer: Peer, threads: int, log: Path) -> Iterator[Running]:
    """Start a peer's process, and let it end behind the block. What it says beside its answers goes to a file. Raises PeerError."""
    asked: Mapping[str, object] = {"model": str(peer.model.resolve()), "threads": threads, "drafts": peer.drafts}
    command = [str(peer.python), "-m", f"benchmarks.peers.{peer.module}", json.dumps(asked)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
        )
    try:
        yield Running(peer, process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tree_of(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    children: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since
            children += (task / "children").read_text().split()
    for child in children:
        yield from tree_of(int(child))


def _proportional(pid: int) -> int:
    """Bytes that a process has in memory, its part of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

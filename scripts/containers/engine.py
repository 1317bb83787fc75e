"""A docker engine of our own, which leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.containers.shell import Failed, run

_TRUST_KEY = Path("/etc/docker/key.json")
"""What dockerd writes outside the folders it is given."""


class Engine:
    """dockerd with data, sockets and pid file in one folder, no default bridge and no rules in the machine's firewall.

    Use it as a context manager. Published ports go through docker's own proxy; a build needs the host's network, and a compose project
    makes a network of its own.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds everything and is removed in the end; its path is short, since a socket's may have 107 characters."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._had_key = _TRUST_KEY.exists()
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "COMPOSE_"))}
        self.env = {
            **outside,
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }
        """For programs that talk to it."""

    def docker(self, *arguments: str, timeout_s: float = 120) -> str:
        """What `docker` writes. Raises Failed."""
        return run(["docker", *arguments], env=self.env, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        (self._folder / "config").mkdir(parents=True)
        (self._folder / "daemon.json").write_text("{}\n")
        try:
            with (self._folder / "dockerd.log").open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self._await()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _command(self) -> list[str]:
        folder = self._folder
        return [
            "dockerd",
            f"--config-file={folder}/daemon.json",
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/docker.pid",
            f"--host=unix://{folder}/docker.sock",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--dns-opt=timeout:1",  # no resolver can be reached from a container, and torch looks for the names of its peers
            "--dns-opt=attempts:1",
        ]

    def _await(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            try:
                self.docker("version", timeout_s=10)
                return
            except Failed:
                time.sleep(0.5)
        log = (self._folder / "dockerd.log").read_text(errors="replace").splitlines()
        raise Failed("dockerd does not come up\n" + "\n".join(log[-20:]))

    def _remove(self) -> None:
        self._remove_containers()
        self._stop()
        for pid in self._left_over():
            os.kill(pid, signal.SIGKILL)
        for mount in self._mounts():
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._had_key and _TRUST_KEY.exists():
            _TRUST_KEY.unlink()
            if not any(_TRUST_KEY.parent.iterdir()):
                _TRUST_KEY.parent.rmdir()

    def _remove_containers(self) -> None:
        try:
            containers = self.docker("ps", "--all", "--quiet", timeout_s=20).split()
            if containers:
                self.docker("rm", "--force", "--volumes", *containers, timeout_s=60)
            self.docker("network", "prune", "--force", timeout_s=20)
        except Failed:
            pass  # a dead engine has none that it could remove; what is left is ended by its processes

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _left_over(self) -> Iterator[int]:
        """Processes that were given a path in the folder: containerd and its shims, if dockerd did not end them."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(b"/") and word.startswith(bytes(self._folder) + b"/") for word in words):
                yield int(entry.name)

    def _mounts(self) -> list[str]:
        """Mount points in the folder, the deepest first."""
        points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        return sorted((point for point in points if point.startswith(f"{self._folder}/")), key=len, reverse=True)

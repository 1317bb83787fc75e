"""A real Redis or Valkey server of this machine, which keeps nothing on disk."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from specsplit.cli.drawn_port import DrawnPort
from tests.support.certificates import Authority

PROGRAMS = "redis-server", "valkey-server"
THERE = [program for program in PROGRAMS if shutil.which(program)]
SERVERS = [
    pytest.param(program, marks=pytest.mark.skipif(program not in THERE, reason=f"there is no {program}"))
    for program in PROGRAMS
]
"""What a fixture is made with for each of them."""
needs_redis = pytest.mark.skipif(
    not THERE or importlib.util.find_spec("redis") is None,
    reason="there is no redis-server (Debian: apt-get install redis-server), or no client of it (pip install 'specsplit[quota]')",
)


class RedisServer:
    """A context manager: inside it the server answers at `url`. It may be stopped, and started again at the same port."""

    def __init__(self, folder: Path, password: str = "", authority: Authority | None = None, program: str = "") -> None:
        """`authority`: it speaks TLS alone, and asks for certificates that this one has signed. `program`: empty for any that is there."""
        self._folder = folder
        self._program = program or THERE[0]
        self._tls: list[str] = []
        self._password = password
        with closing(DrawnPort("127.0.0.1:0")) as drawn:
            self.port = int(drawn.listen.rpartition(":")[2])
        self.url = f"{'redis' if authority is None else 'rediss'}://127.0.0.1:{self.port}"
        if authority is not None:
            own = authority.certify("redis")
            files = ["--tls-ca-cert-file", authority.pem, "--tls-cert-file", own.chain, "--tls-key-file", own.key]
            self._tls = ["--tls-port", str(self.port), *map(str, files)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, empty, and return once it listens."""
        ports = ["--port", "0", *self._tls] if self._tls else ["--port", str(self.port)]
        options = [*ports, "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        options += ["--requirepass", self._password] if self._password else []
        self.process = subprocess.Popen([self._program, *options], stdout=subprocess.DEVNULL)
        wait_listening(self.process, self.port)

    def stop(self) -> None:
        """End it, with all that it had."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    """Return once the server listens."""
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError("the server does not listen")

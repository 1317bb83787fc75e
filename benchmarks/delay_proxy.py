"""A TCP proxy that delivers every byte a fixed time after it came: a network of known delay on one machine, without root.

Each direction is delayed by itself and in order; bandwidth is not limited. Threads, not asyncio, because an event loop's timers
are rounded up to whole milliseconds. `delayed` runs it in a process of its own, so that it shares no interpreter lock with what
is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Passed:
    """Bytes that went through, per direction."""

    to_server: int = 0
    to_client: int = 0


@dataclass
class DelayProxy:
    """Listens on a free loopback port and forwards to `target` (host, port), `delay_s` later in each direction."""

    target: tuple[str, int]
    delay_s: float
    passed: Passed = field(default_factory=Passed)

    def start(self) -> str:
        """Listen; returns host:port. Serves on daemon threads until the process ends."""
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        host, port = listener.getsockname()[:2]
        return f"{host}:{port}"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pipe(client, server, "to_server")
            self._pipe(server, client, "to_client")

    def _pipe(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        """Two threads, one that reads at once and one that writes on time: chunks in flight overlap as in a network."""
        due: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(source, due, direction), daemon=True).start()
        threading.Thread(target=_deliver, args=(due, sink), daemon=True).start()

    def _read(self, source: socket.socket, due: queue.SimpleQueue[tuple[float, bytes]], direction: str) -> None:
        data = b"first"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:  # reset by the peer: to the other end it is simply over
                data = b""
            setattr(self.passed, direction, getattr(self.passed, direction) + len(data))
            due.put((time.monotonic() + self.delay_s, data))


def _deliver(due: queue.SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the reader has gone: nothing is owed to it
        while True:
            when, data = due.get()
            time.sleep(max(0.0, when - time.monotonic()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


@dataclass
class Proxied:
    """A proxy in a process of its own."""

    address: str
    """host:port to dial."""
    _process: subprocess.Popen[str]

    def passed(self) -> Passed:
        """Bytes forwarded so far, all connections together."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Passed(**json.loads(self._process.stdout.readline()))


@contextlib.contextmanager
def delayed(target: str, delay_s: float) -> Iterator[Proxied]:
    """A proxy to `target` (host:port) for the duration of the block."""
    words = [sys.executable, "-m", "benchmarks.delay_proxy", target, str(delay_s)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Proxied(process.stdout.readline().strip(), process)
        finally:
            process.stdin.close()  # its end of input is its end
            process.wait()


def main() -> None:
    """Serve until standard input ends; every line of it is answered with what has passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="host:port")
    parser.add_argument("delay_s", type=float)
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    proxy = DelayProxy((host, int(port)), options.delay_s)
    sys.stdout.write(proxy.start() + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(vars(proxy.passed)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

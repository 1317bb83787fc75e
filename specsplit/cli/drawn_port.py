"""A port for a process that is being started, so that others can be told of it before the process listens."""

from __future__ import annotations

import socket
from contextlib import suppress

from specsplit.settings.address import bindable, split


class DrawnPort:
    """A free port of this machine in the place of port 0. Until `close` nobody else who asks for any free port is given it."""

    def __init__(self, listen: str) -> None:
        """listen: host:port. Nothing is drawn if its port is not 0, or its host cannot be bound: who listens there says why."""
        host, port = split("listen", listen)
        self.listen = listen
        """host:port with the port that was drawn; else as it was."""
        self._bound: socket.socket | None = None
        if port == 0:
            with suppress(OSError):
                self._bound = _bound(bindable(host))
                self.listen = f"{listen.rpartition(':')[0]}:{self._bound.getsockname()[1]}"

    @property
    def drawn(self) -> bool:
        """Whether there is a port that was drawn, and is kept."""
        return self._bound is not None

    def close(self) -> None:
        """Let go of it. Who listens there goes on to."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None


def _bound(host: str) -> socket.socket:
    """A socket at any free port. It does not listen, and lets another do so at the same port, as gRPC's server asks for."""
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound

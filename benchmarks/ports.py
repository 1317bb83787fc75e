"""Ports that are free, for processes that are to be found at the same place again."""

from __future__ import annotations

import os
import socket

from specsplit.errors import Unavailable

_PORTS = range(21_000, 32_000)
"""Below those that the kernel gives to whoever asks for any."""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for first in range(_PORTS.start + os.getpid() % 1000 * 8, _PORTS.stop - count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise Unavailable(f"no {count} ports in a row are free")


def _is_free(port: int) -> bool:
    with socket.socket() as bound:
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""A DNS server that says which IPv4 addresses a name has now (RFC 1035: questions and answers over UDP), and lets nobody remember them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

A, IN = 1, 1
ANSWER, NO_SUCH_NAME = 0x8580, 0x8583
"""Flags: an authoritative answer, recursion available; the second for a name that there is not."""
HEADER: Final = 12


class NameServer:
    """A context manager: inside it questions are answered at port 53 of a host."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.addresses: dict[str, Sequence[str]] = {}
        """The IPv4 addresses of every name that there is; they may be changed at any time."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 53))
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                asked, sender = self._socket.recvfrom(512)
                self._socket.sendto(self._answer(asked), sender)

    def _answer(self, asked: bytes) -> bytes:
        """Answer the first question of a message; one for what is no address has no records."""
        name, end = _name(asked)
        kind, _ = struct.unpack_from("!HH", asked, end)
        there = name.lower() in self.addresses
        found = self.addresses[name.lower()] if there and kind == A else ()
        header = asked[:2] + struct.pack("!HHHHH", ANSWER if there else NO_SUCH_NAME, 1, len(found), 0, 0)
        return header + asked[HEADER : end + 4] + b"".join(map(_record, found))


def _name(asked: bytes) -> tuple[str, int]:
    """The name in the question of a message, and where it ends."""
    labels, at = list[str](), HEADER
    while length := asked[at]:
        labels.append(asked[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1


def _record(address: str) -> bytes:
    """An A record of the name in the question, which counts for no time."""
    return struct.pack("!HHHIH", 0xC000 | HEADER, A, IN, 0, 4) + socket.inet_aton(address)

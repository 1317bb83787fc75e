"""Where the coordinators of a member are: those of a list, and every address of a name, which may change while it runs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import grpc

from specsplit.observe import fields
from specsplit.rpc.channel import dial
from specsplit.settings import address as addresses
from specsplit.settings.addresses import Addresses
from specsplit.settings.dialling import Transport

_log = logging.getLogger(__name__)

Dialled = Callable[[], grpc.aio.Channel]
"""Makes a channel to one coordinator. Every call has its own, so that changed certificates count from the next one on."""
LookUp = Callable[[str], Awaitable[Sequence[str]]]
"""host:port of a name to those of its addresses. Raises OSError if there are none now, or nobody can say."""


async def look_up(name: str) -> Sequence[str]:
    """Ask the system's resolver: the IPv4 addresses (A records) of a name, or those of IPv6 where it has no others.

    Both would be one coordinator twice where it listens on both.
    """
    host, port = addresses.split("coordinator", name)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = [str(entry[4][0]) for entry in found if entry[0] is socket.AF_INET] or [str(entry[4][0]) for entry in found]
    return [addresses.bracketed(f"{each}:{port}") for each in dict.fromkeys(hosts)]


class Coordinators:
    """The coordinators of one member, as its setting names them."""

    def __init__(self, text: str, settings: Transport | None = None, look_up: LookUp = look_up) -> None:
        """`text` as in the setting `coordinator`. Raises InvalidRequest as `Addresses.read` does."""
        self._named = Addresses.read("coordinator", text)
        self._settings = settings
        self._look_up = look_up
        self._found: dict[str, Sequence[str]] = {}
        """What every name stood for when it was last known."""
        self._unknown: dict[str, str] = {}
        """The names that cannot be looked up, and why."""

    @property
    def may_change(self) -> bool:
        """True if it is worth to look again."""
        return bool(self._named.names)

    async def look(self) -> Mapping[str, Dialled]:
        """Every coordinator that there is now, by its host:port. A name that cannot be looked up stands for what it stood for before."""
        found: dict[str, Dialled] = {each: partial(dial, each, self._settings) for each in self._named.listed}
        for name in self._named.names:
            host, _ = addresses.split("coordinator", name)
            for each in await self._addresses_of(name):
                found.setdefault(each, partial(dial, each, self._settings, known_as=host))
        return found

    async def _addresses_of(self, name: str) -> Sequence[str]:
        try:
            self._found[name] = await self._look_up(name)
        except OSError as error:
            self._complain(name, error.strerror or str(error))
        else:
            self._unknown.pop(name, None)
        return self._found.get(name, ())

    def _complain(self, name: str, why: str) -> None:
        """Say that a name cannot be looked up, once for every reason."""
        if self._unknown.get(name) != why:
            self._unknown[name] = why
            _log.warning("the name of the coordinators cannot be looked up", extra=fields(name=name, why=why))

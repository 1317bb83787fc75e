"""host:port, as settings write it."""

from __future__ import annotations

import ipaddress

from specsplit.errors import InvalidRequest, quoted

_DIGITS = 5
"""Digits of a port, at most."""


def split(field: str, address: str) -> tuple[str, int]:
    """Host (without brackets) and port of `address`. Raises InvalidRequest naming `field`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > _DIGITS or int(port) > 65535:
        raise InvalidRequest(field, f"is {quoted(address)}, expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """True if `host` means every interface, which no peer can dial."""
    return host in ("0.0.0.0", "::", "*")

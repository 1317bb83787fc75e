"""host:port, as settings write it."""

from __future__ import annotations

import ipaddress
import re
import socket

from specsplit.errors import InvalidRequest, quoted

_DIGITS = 5
"""Digits of a port, at most."""
_NAME_LENGTH = 253
"""Characters of a host's name, at most (RFC 1035)."""
_NAME = re.compile(
    r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?", re.IGNORECASE | re.ASCII
)
"""A host's name. Neither a scheme nor a path of gRPC's (unix:, dns:///, xds:) is one."""


def split(field: str, address: str) -> tuple[str, int]:
    """Host (without brackets) and port of `address`: a name, an IPv4 address or an IPv6 address in brackets; "*" is every interface.

    Raises InvalidRequest naming `field`.
    """
    host, colon, port = address.rpartition(":")
    is_port = colon and port.isascii() and port.isdecimal() and len(port) <= _DIGITS and int(port) <= 65535
    if not is_port or not (host == "*" or _is_host(host)):
        raise InvalidRequest(
            field, f"is {quoted(address)}, expected host:port with a host's name or IP address (IPv6 in brackets)"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def from_here(address: str) -> str:
    """Where a program on this machine reaches what listens at `address`: at the loopback, if that is every interface."""
    host, port = split("address", address)
    return f"127.0.0.1:{port}" if is_wildcard(host) else address


def bracketed(address: str) -> str:
    """`address` with brackets around an IPv6 host that has none; what stands behind the last colon is the port."""
    host, _, port = address.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and _is_ip(host) else address


def check_dialable(field: str, address: str) -> None:
    """Raise InvalidRequest naming `field` unless `address` is one that another machine can dial: a host and a port of it."""
    host, port = split(field, address)
    if is_wildcard(host) or port == 0:
        raise InvalidRequest(
            field, f"is {quoted(address)}, which nobody can dial; expected a host and the port that it listens on"
        )


def bindable(host: str) -> str:
    """What to bind for `host`: every interface is [::], and 0.0.0.0 where the host has no IPv6."""
    if host not in ("::", "*"):
        return host
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _is_host(host: str) -> bool:
    if host.startswith("["):
        return host.endswith("]") and ":" in host and _is_ip(host[1:-1])
    return len(host) <= _NAME_LENGTH and _NAME.fullmatch(host) is not None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    if host == "localhost":
        return True
    return _is_ip(host) and ipaddress.ip_address(host).is_loopback


def is_wildcard(host: str) -> bool:
    """True if `host` means every interface, which no peer can dial."""
    return host in ("0.0.0.0", "::", "*")

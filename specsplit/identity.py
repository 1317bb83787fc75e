"""Who calls, and what he may do: identities, and the two files in which an operator names them."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, cast

from specsplit.errors import InvalidRequest, quoted
from specsplit.settings.toml import parse


class CallerRole(StrEnum):
    """What a caller may be to a server."""

    CLIENT = "client"
    """A program that sends requests."""
    MEMBER = "member"
    """A coordinator, verifier or drafter of the cluster."""
    OPERATOR = "operator"
    """Changes what the cluster does."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller that a server knows."""

    name: str
    """The caller's name as the operator wrote it; empty: nobody was asked."""
    roles: frozenset[CallerRole]


ANYBODY: Final = Identity("", frozenset(CallerRole))
"""Every caller of a server that asks nobody who he is."""
ANONYMOUS: Final = Identity("", frozenset({CallerRole.CLIENT}))
"""A caller without a token where those are clients."""

_SCOPE_BYTES: Final = 16
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EXPECTED_ROLES = "a list of some of " + ", ".join(CallerRole)


def digest(token: str) -> str:
    """What a tokens file has of a token: its SHA-256 in hexadecimal. Tokens are long and drawn at random, so that no salt is needed."""
    return sha256(token.encode()).hexdigest()


def scope_of(name: str, key: bytes) -> bytes:
    """Say whose a session is to those who are not to know the caller's name: 16 bytes by its name, which nobody who lacks the key can tell.

    Empty for a caller without a name: it may be anybody.
    """
    return hmac.digest(key, name.encode(), "sha256")[:_SCOPE_BYTES] if name else b""


def roles_of(text: str) -> Mapping[str, Identity]:
    """The identities of a roles file, by subject name: `"verifier.example" = ["member"]`.

    Raises InvalidRequest, naming the file's setting and the entry.
    """
    return {
        name: Identity(name, _roles("roles_file", name, given)) for name, given in parse("roles_file", text).items()
    }


def tokens_of(text: str) -> Mapping[str, Identity]:
    """The identities of a tokens file, by digest: a table for each, such as `[alice]` with `roles = ["client"]` and `sha256 = "…"`.

    Raises InvalidRequest, naming the file's setting and the entry.
    """
    found: dict[str, Identity] = {}
    for name, given in parse("tokens_file", text).items():
        entry = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        shown = entry.get("sha256")
        if set(entry) != {"roles", "sha256"} or not isinstance(shown, str) or not _DIGEST.fullmatch(shown):
            raise InvalidRequest(
                "tokens_file",
                f"[{quoted(name)}] must have roles, and sha256 with the 64 hexadecimal digits of its token",
            )
        if shown in found:
            raise InvalidRequest("tokens_file", f"{quoted(found[shown].name)} and {quoted(name)} have the same token")
        found[shown] = Identity(name, _roles("tokens_file", name, entry["roles"]))
    return found


def token_of(text: str) -> str:
    """The token of a token file. Raises InvalidRequest if it is none."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token_file", "holds no token: expected one line of printable ASCII without spaces")
    return token


def _roles(field: str, name: str, given: object) -> frozenset[CallerRole]:
    said = quoted(str(given))
    listed = cast("list[object]", given) if isinstance(given, list) else []
    known = {role.value: role for role in CallerRole}
    roles = frozenset(known[each] for each in listed if isinstance(each, str) and each in known)
    if len(roles) < len(listed):
        roles = frozenset[CallerRole]()
    if not roles or not name:
        raise InvalidRequest(field, f"{quoted(name)} has {said}, expected {_EXPECTED_ROLES}")
    return roles

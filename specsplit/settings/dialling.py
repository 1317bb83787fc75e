"""How to dial, without pydantic, for a program that is to start within a fraction of a second: a health check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from specsplit.settings.transport import TransportSettings

ADDRESS = "127.0.0.1:50050"
"""Where a coordinator listens unless told otherwise."""
ENV_PREFIX = "SPECSPLIT_CLIENT_"
"""Environment variables of clients begin so."""
_PATHS = ("tls_ca", "tls_cert", "tls_key")
_NOT_NEEDED = ("address", "token_file")


@dataclass(frozen=True)
class Dialling:
    """The part of TransportSettings that dialling needs, whose defaults these are."""

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    insecure: bool = False
    max_message_bytes: int = 16 * 2**20
    keepalive_s: float = 10.0
    connect_timeout_s: float = 10.0


Transport: TypeAlias = "TransportSettings | Dialling"
"""What dialling goes by."""


def anonymous(given: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Transport:
    """What a client is given, and what the environment says, without a token.

    Files and flags are taken as they are. Where anything has to be parsed or refused, ClientSettings does that. Raises InvalidRequest.
    """
    variables = _variables(os.environ if environment is None else environment)
    chosen: dict[str, Any] = {**{name: Path(variables[name]) for name in _PATHS if name in variables}, **given}
    if set(variables) <= {*_PATHS, *_NOT_NEEDED} and _agree(**{name: chosen.get(name) for name in _PATHS}):
        return Dialling(**chosen)
    from specsplit.settings.transport import ClientSettings  # noqa: PLC0415 (pydantic, which most have no need of here)

    return ClientSettings.load(None, **given).model_copy(update={"token_file": None})


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for clients that are not empty, by name of the setting."""
    prefix = ENV_PREFIX.lower()
    named = {variable.lower(): value for variable, value in environment.items() if value}
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def _agree(tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None) -> bool:
    return (tls_cert is None) == (tls_key is None) and (tls_cert is None or tls_ca is not None)

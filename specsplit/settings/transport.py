"""Settings that both ends of a connection have."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specsplit.errors import InvalidRequest
from specsplit.settings.base import Settings
from specsplit.settings.dialling import ADDRESS, ENV_PREFIX, Dialling
from specsplit.settings.units import Seconds


class TransportSettings(Settings):
    """How to speak to a peer; all that a client needs."""

    tls_ca: Path | None = None
    """PEM file with the certificate authority that servers are checked against. Unset: dial in the clear."""
    tls_cert: Path | None = None
    """PEM file with one's own certificate chain: what a server shows its callers, and whoever dials shows servers that ask. Unset: none."""
    tls_key: Path | None = None
    """PEM file with the certificate's private key."""
    token_file: Path | None = None
    """File with the bearer token that is shown to servers. Unset: none is shown."""
    insecure: bool = False
    """Allows listening beyond this machine without TLS, and dialling beyond it in the clear, tokens and texts included."""
    max_message_bytes: int = Field(default=Dialling.max_message_bytes, ge=64 * 2**10, le=2**31 - 1)
    """Largest message sent or accepted."""
    keepalive_s: Seconds = Field(default=Dialling.keepalive_s, ge=1.0)
    """Time between pings on a quiet connection; a peer that leaves two unanswered is taken for gone."""
    connect_timeout_s: Seconds = Field(default=Dialling.connect_timeout_s, ge=0.1)
    """Longest time for one attempt to connect, handshakes included; after it the peer is dialled again. A server hangs up on a peer that
    has not shaken hands by then.
    """

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert", "and tls_key go together; give both or neither", "tls_key")
        return self


class ClientSettings(TransportSettings):
    """How a program reaches a coordinator: given in code, on the command line, or in the environment."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    address: str = ADDRESS
    """host:port of the coordinator that commands talk to, or several as in `coordinator` of members; a program gives its client one."""

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidRequest(
                "tls_cert",
                "is shown over TLS alone; give tls_ca (--tls-ca), the authority of the server's certificate, too",
            )
        return self

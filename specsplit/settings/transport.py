"""What both ends of a connection are told."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from specsplit.settings.base import Settings


class TransportSettings(Settings):
    """How to speak to a peer; all that a client needs."""

    tls_ca: Path | None = None
    """PEM file with the certificate authority that servers are checked against. Unset: dial in the clear."""
    max_message_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10, le=2**31 - 1)
    """Largest message sent or accepted."""
    keepalive_s: float = Field(default=10.0, ge=1.0)
    """Time between pings on a quiet connection; a peer that leaves two unanswered is taken for gone."""
    connect_timeout_s: float = Field(default=10.0, ge=0.1)
    """Longest time for one attempt to connect, handshakes included; after it the peer is dialled again."""

"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specsplit.settings import TransportSettings

ADDRESS = "127.0.0.1:50050"
"""Where a coordinator listens unless told otherwise."""

AddressOption = Annotated[str, typer.Option("--address", metavar="HOST:PORT", help="The coordinator.")]
"""Which coordinator to talk to."""

TlsCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Speak TLS, and check the coordinator against this CA (PEM)."),
]
"""How to talk to it."""


def transport(tls_ca: Path | None) -> TransportSettings:
    """Make the settings of a client that was given these options."""
    return TransportSettings(tls_ca=tls_ca)

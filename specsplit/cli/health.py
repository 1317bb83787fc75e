"""`specsplit health`: does a service take calls? For the health checks of containers."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specsplit.cli.options import TlsCaOption, transport
from specsplit.errors import SpecsplitError
from specsplit.rpc import dial_blocking, health_of_blocking
from specsplit.settings import TransportSettings

SERVING = "SERVING"
"""What a service says that takes calls."""
UNREACHABLE = "UNREACHABLE"
"""What is said of a service that gives no answer."""


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A coordinator, verifier or drafter.")],
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="Time it gets to answer.")] = 3.0,
    tls_ca: TlsCaOption = None,
) -> None:
    """Ask one service whether it takes calls: one line, and exit 0 if it says SERVING, else 1."""
    state, why = ask(address, timeout_s, transport(tls_ca))
    typer.echo(f"{address} {state}{f': {why}' if why else ''}")
    sys.exit(0 if state == SERVING else 1)


def ask(address: str, timeout_s: float, settings: TransportSettings) -> tuple[str, str]:
    """The state of the service at host:port and, if it gives none, why. Raises InvalidRequest for a bad address or CA file."""
    with dial_blocking(address, settings) as channel:
        try:
            return health_of_blocking(channel, timeout_s), ""
        except SpecsplitError as error:
            return UNREACHABLE, " ".join(str(error).split())

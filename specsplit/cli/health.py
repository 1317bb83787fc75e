"""`specsplit health`: do services take calls? For the health checks of containers.

Whoever reaches a port may ask, so no token is shown: one that the environment names, for other commands, is none of the services' business.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from specsplit.cli.options import with_transport
from specsplit.cli.say import say
from specsplit.errors import SpecsplitError
from specsplit.rpc.channel import dial_blocking
from specsplit.rpc.health import health_of_blocking
from specsplit.settings.dialling import Transport
from specsplit.values.bounds import MOST_SECONDS

SERVING = "SERVING"
"""What a service says that takes calls."""
UNREACHABLE = "UNREACHABLE"
"""What is said of a service that gives no answer."""


@partial(with_transport, shows_token=False)
def health(
    *,
    addresses: Annotated[
        list[str],
        typer.Argument(metavar="HOST:PORT...", help="Coordinators, verifiers or drafters; the ranks of a group."),
    ],
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.1, max=MOST_SECONDS, help="Time each gets to answer.")
    ] = 3.0,
    transport: Transport,
) -> None:
    """Ask services whether they take calls: one line each, and exit 0 if all say SERVING, else 1. No token is shown."""
    states = [(address, *ask(address, timeout_s, transport)) for address in addresses]
    for address, state, why in states:
        say(f"{address} {state}{f': {why}' if why else ''}")
    sys.exit(0 if all(state == SERVING for _, state, _ in states) else 1)


def ask(address: str, timeout_s: float, settings: Transport) -> tuple[str, str]:
    """The state of the service at host:port and, if it gives none, why. Raises InvalidRequest for a bad address or CA file."""
    with dial_blocking(address, settings) as channel:
        try:
            return health_of_blocking(channel, timeout_s), ""
        except SpecsplitError as error:
            return UNREACHABLE, " ".join(str(error).split())

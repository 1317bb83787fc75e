"""`specsplit trace`: what a running cluster traces."""

from __future__ import annotations

from typing import Annotated

import typer

from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.say import say
from specsplit.client import Client
from specsplit.membership import TracingInForce
from specsplit.settings import TransportSettings
from specsplit.values import SERVICES, TraceChanges

TIMEOUT_S = 5
ALL = "all"


@with_transport
def trace(
    *,
    level: Annotated[
        int | None,
        typer.Option("--level", help="0 nothing, 1 the stages of a request, 2 its steps too, 3 their parts too."),
    ] = None,
    ratio: Annotated[float | None, typer.Option("--ratio", help="Share of the requests that are traced.")] = None,
    modules: Annotated[
        str | None,
        typer.Option("--modules", metavar="NAMES", help=f"Who makes spans: some of {','.join(SERVICES)}, or {ALL}."),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First undo every earlier change: back to each service's own settings.")
    ] = False,
    address: AddressOption = ADDRESS,
    transport: TransportSettings,
) -> None:
    """Change what every service traces, from now on; without options show what is changed.

    Changing takes the role operator, looking that of a client or operator.
    A service sends spans only if it was started with trace_endpoint. Members that join later are told too; a coordinator that starts
    anew knows of no changes.
    """
    changes = TraceChanges(level, ratio, _names(modules))
    with Client(address, transport) as client:
        if reset or changes != TraceChanges():
            in_force = client.set_tracing(changes, reset=reset, timeout_s=TIMEOUT_S)
        else:
            in_force = client.tracing(timeout_s=TIMEOUT_S)
        say(sentence(in_force))


def sentence(in_force: TracingInForce) -> str:
    """Say what is changed now, and for whom."""
    changes = in_force.changes
    said = {"level": changes.level, "ratio": changes.ratio, "modules": changes.modules and ",".join(changes.modules)}
    changed = " ".join(f"{name}={value}" for name, value in said.items() if value is not None)
    return f"tracing: {changed or 'as each service is set'}; members: {in_force.members}, and the coordinator"


def _names(modules: str | None) -> tuple[str, ...] | None:
    if modules is None:
        return None
    return SERVICES if modules == ALL else tuple(name.strip() for name in modules.split(",") if name.strip())

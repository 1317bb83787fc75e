"""`specsplit update-weights`: other weights for the target or the drafters of a running cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.say import say
from specsplit.client import Client
from specsplit.engine import UpdateWeights
from specsplit.settings import TransportSettings
from specsplit.values import DrafterKind


@with_transport
def update_weights(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Their folder, by its name in weights_dir of who takes them.")
    ],
    *,
    member: Annotated[
        str,
        typer.Option(
            "--member",
            metavar="ID",
            help="The one verifier or drafter that takes them. Default: all verifiers, at once.",
        ),
    ] = "",
    drafters: Annotated[
        DrafterKind | None,
        typer.Option("--drafters", metavar="KIND", help="All drafters of this kind take them, and no verifier."),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Compute sessions that run again with them, their tokens so far included. Default: these end with the weights before.",
        ),
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout-s", help="Wait so long for sessions that run, while others wait; then the old weights stay."
        ),
    ] = 60.0,
    address: AddressOption = ADDRESS,
    transport: TransportSettings,
) -> None:
    """Have verifiers, or drafters, go on with other weights of their model, without a restart; exit 0 if all of them do, else 1.

    It takes the role operator. The weights are of the same model in all but their numbers. They are read and checked while the others
    serve, so that there has to be memory for both. Drafters take them at once, and their sessions go on.
    """
    wanted = UpdateWeights(folder, restart, timeout_s)
    with Client(address, transport) as client:
        answers = client.update_weights(wanted, member, drafters=drafters)
    for each in answers:
        say(f"{each.member_id}: {each.message}", err=not each.version)
    if not all(each.version for each in answers):
        raise typer.Exit(1)

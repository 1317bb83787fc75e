"""`specsplit up`: a local cluster until Ctrl-C."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from specsplit.cli.drafters import CHOICES, check_folder, choose_drafters
from specsplit.cli.failures import fail
from specsplit.cli.folders import DRAFTS, POCKET_LAYERS, TARGET, inflation, pocket
from specsplit.cli.local import Child, LocalCluster
from specsplit.cli.options import ADDRESS
from specsplit.cli.say import say
from specsplit.cli.serve import load_settings
from specsplit.cli.signals import sigterm_as_ctrl_c
from specsplit.cli.streams import let_output_go
from specsplit.errors import InvalidRequest, printable
from specsplit.settings import CoordinatorSettings
from specsplit.settings.address import is_loopback, split
from specsplit.values.bounds import INT32_MAX
from specsplit.wire.limits import MAX_MEMBERS


def up(
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FOLDER", help="The target; the pocket target if left out.")
    ] = None,
    draft_model: Annotated[
        list[str] | None,
        typer.Option(
            "--draft-model",
            metavar="[KIND=]FOLDER",
            help="The draft model or head; KIND= says whose, where several kinds need one. May be given repeatedly. "
            f"If left out it is looked for beside the target, in {', '.join(DRAFTS.values())}.",
        ),
    ] = None,
    drafters: Annotated[
        int, typer.Option("--drafters", min=0, max=MAX_MEMBERS, help="How many drafters of each kind.")
    ] = 1,
    verifiers: Annotated[int, typer.Option("--verifiers", min=1, max=MAX_MEMBERS, help="How many verifiers.")] = 1,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="KIND",
            help=f"{CHOICES}; may be given repeatedly. If left out: the kinds of --draft-model (standalone without KIND=), "
            "else the best whose folder is beside the target, else ngram.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the coordinator listens.")
    ] = ADDRESS,
    web_listen: Annotated[
        str, typer.Option("--web-listen", metavar="HOST:PORT", help="Where the coordinator serves its page.")
    ] = "",
    inflate_layers: Annotated[
        int | None,
        typer.Option(
            "--inflate-layers",
            min=0,
            max=INT32_MAX,
            help="Make the target this deep with layers that change nothing; 0: as it is. "
            f"If left out: {POCKET_LAYERS} for the pocket target, 0 with --model.",
        ),
    ] = None,
) -> None:
    """Run a coordinator, verifiers and drafters on this machine until Ctrl-C. It goes on without a drafter that dies."""
    target = pocket("--model") / TARGET if model is None else check_folder("--model", model)
    chosen = choose_drafters(drafter or (), draft_model or (), target)
    layers = _depth(inflate_layers, pocket=model is None)
    # What is wrong with them is said here, not by a child that ends.
    try:
        load_settings(CoordinatorSettings, model=target, listen=listen, web_listen=web_listen)
    except InvalidRequest:
        _check_stays_here("--listen", listen)
        _check_stays_here("--web-listen", web_listen)
        raise
    # A child sees a pipe, whoever reads at its end.
    readable: dict[str, object] = {"log_format": "text" if sys.stderr.isatty() else "json"}
    cluster = LocalCluster(
        target,
        chosen.models,
        verifiers=verifiers,
        drafters=chosen.kinds * drafters,
        listen=listen,
        coordinator={**readable, "web_listen": web_listen or None},
        verifier={**readable, "inflate_layers": layers},
        drafter=readable,
        listener=forward,
    )
    watch(cluster)


def _depth(wanted: int | None, *, pocket: bool) -> int:
    """How many layers the target is inflated to, as asked for or as suits it; 0: it stays as it is. Says so if it is not 0."""
    layers = (POCKET_LAYERS if pocket else 0) if wanted is None else wanted
    if layers:
        say(inflation(layers))
    return layers


def watch(cluster: LocalCluster) -> None:
    """Run the cluster until Ctrl-C or SIGTERM; exit 1 if the coordinator or the last verifier ends by itself before.

    The exit status is 130 if it is told to end before everyone has joined.
    """
    let_output_go()
    is_up = False
    try:
        with sigterm_as_ctrl_c(), cluster:
            is_up = True
            dead = _run(cluster)
    except KeyboardInterrupt:
        if not is_up:
            raise typer.Abort from None
        return
    fail(f"the cluster is down; ended unexpectedly: {', '.join(map(_obituary, dead))}", 1)


def _run(cluster: LocalCluster) -> list[Child]:
    """Until the cluster is down: who ended by itself. Raises KeyboardInterrupt on Ctrl-C."""
    mourned: set[str] = set()
    _print_addresses(cluster)
    while not cluster.down:
        for child in cluster.dead:
            if child.name not in mourned:
                mourned.add(child.name)
                forward("specsplit", f"{_obituary(child)} ended unexpectedly; the cluster goes on without it")
        time.sleep(0.2)
    return cluster.dead


def _obituary(child: Child) -> str:
    return f"{child.name} (status {child.process.returncode})"


def forward(name: str, line: str) -> None:
    """Write one line of a child's output to stderr, with its name before it."""
    sys.stderr.write(printable(f"{name} | {line}", "\t") + "\n")
    sys.stderr.flush()


def _check_stays_here(option: str, address: str) -> None:
    """Raise InvalidRequest for an address that other machines reach: services have options that make one safe, this command has none."""
    if address and not is_loopback(split(option, address)[0]):
        raise InvalidRequest(
            option,
            f"{address} can be reached from other machines, and up runs a cluster for this one alone; listen on 127.0.0.1, or start "
            "each service with specsplit serve, which takes TLS and tokens",
        )


def _print_addresses(cluster: LocalCluster) -> None:
    for child in cluster.children:
        say(f"{child.name} {child.address}")
    say(f"ready: specsplit generate --address {cluster.address} -p '...'; Ctrl-C ends it")
    sys.stdout.flush()

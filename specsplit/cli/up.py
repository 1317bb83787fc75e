"""`specsplit up`: a local cluster until Ctrl-C."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import typer

from specsplit.cli import cluster_options as options
from specsplit.cli.children import Wish, children_of
from specsplit.cli.drafters import Drafters, check_folder, choose_drafters
from specsplit.cli.failures import fail
from specsplit.cli.folders import POCKET_LAYERS, TARGET, inflation, pocket
from specsplit.cli.gateway import Gateway, adapter_listen, check_http, check_installed
from specsplit.cli.handed import Setting, read_handed
from specsplit.cli.local import LocalCluster
from specsplit.cli.options import ADDRESS, as_options, with_transport
from specsplit.cli.process import Process
from specsplit.cli.say import say
from specsplit.cli.signals import sigterm_as_ctrl_c
from specsplit.cli.streams import let_output_go
from specsplit.errors import InvalidRequest, printable
from specsplit.settings import TransportSettings


@with_transport
def up(
    *,
    model: options.ModelOption = None,
    draft_model: options.DraftModelOption = None,
    drafters: options.DraftersOption = 1,
    verifiers: options.VerifiersOption = 1,
    drafter: options.DrafterOption = None,
    listen: options.ListenOption = ADDRESS,
    web_listen: options.WebListenOption = "",
    http_listen: options.HttpListenOption = "",
    inflate_layers: options.InflateOption = None,
    config: options.ConfigOption = None,
    given: options.SetOption = None,
    transport: TransportSettings,
) -> None:
    """Run a coordinator, verifiers and drafters on this machine until Ctrl-C. It goes on without a drafter that dies.

    Every setting of every service can be handed on. What counts first is an option of this command, then --set, then the file of
    --config, then the environment (SPECSPLIT_VERIFIER_KV_TOKENS). --tls-ca, --token-file and so on are how this command and the line
    that it prints reach the coordinator as a client.
    """
    target = pocket("--model") / TARGET if model is None else check_folder("--model", model)
    chosen = _as_many(choose_drafters(drafter or (), draft_model or (), target), drafters)
    handed = read_handed(config, given or ())
    if chosen.lookup:
        handed = handed.unless_given(Setting("verifier", "lookup", True, "--drafter"))
    if http_listen and (adapters := handed.value("verifier", "adapters_dir")):
        handed = handed.unless_given(
            Setting("coordinator", "adapter_listen", adapter_listen(Path(adapters)), "--http-listen")
        )
    layers = (POCKET_LAYERS if model is None else 0) if inflate_layers is None else inflate_layers
    counts = {"coordinator": 1, "verifier": verifiers, "drafter": len(chosen.kinds)}
    children = children_of(Wish(target, chosen, listen, web_listen, layers, counts), handed, transport)
    if http_listen:
        check_http("--http-listen", http_listen, children.transport)
        check_installed()
    if layers:
        say(inflation(layers))
    if chosen.lookup and children.options["verifier"].get("lookup"):
        say("No head or draft model lies beside the target: verifiers draft by lookup themselves.")
    cluster = LocalCluster(
        target,
        chosen.models,
        verifiers=verifiers,
        drafters=chosen.kinds,
        listen=listen,
        coordinator=children.options["coordinator"],
        verifier=children.options["verifier"],
        drafter=children.options["drafter"],
        transport=children.transport,
        listener=forward,
    )
    watch(cluster, http_listen)


def watch(cluster: LocalCluster, http_listen: str = "") -> None:
    """Run the cluster, and a gateway if it is to listen somewhere, until Ctrl-C or SIGTERM.

    Exit 1 if the coordinator or the last verifier ends by itself before.

    The exit status is 130 if it is told to end before everyone has joined.
    """
    let_output_go()
    is_up = False
    try:
        with sigterm_as_ctrl_c(), cluster, ExitStack() as stack:
            gateways = [stack.enter_context(each) for each in _gateways(cluster, http_listen)]
            is_up = True
            dead = _run(cluster, gateways)
    except KeyboardInterrupt:
        if not is_up:
            raise typer.Abort from None
        return
    fail(f"the cluster is down; ended unexpectedly: {', '.join(map(_obituary, dead))}", 1)


def _as_many(chosen: Drafters, drafters: int) -> Drafters:
    """So many drafters of each kind; with 0 nobody drafts. Raises InvalidRequest for several where there is no kind."""
    if chosen.lookup and drafters > 1:
        raise InvalidRequest(
            "--drafters",
            f"is {drafters}, and there is nothing to start {drafters} of: no head or draft model lies beside the target, so that "
            "verifiers draft by lookup themselves; leave it out, or say --drafter ngram",
        )
    return replace(chosen, kinds=chosen.kinds * drafters, lookup=chosen.lookup and drafters > 0)


def _gateways(cluster: LocalCluster, http_listen: str) -> list[Gateway]:
    """The gateway that is asked for, begun; none if none is."""
    adapters = [*cluster.coordinator.adapters.values()]
    return [Gateway(cluster.address, http_listen, forward, adapters=adapters)] if http_listen else []


def _run(cluster: LocalCluster, gateways: Sequence[Gateway]) -> Sequence[Process]:
    """Until the cluster is down: who ended by itself. Raises KeyboardInterrupt on Ctrl-C."""
    mourned: set[str] = set()
    _print_addresses(cluster, gateways)
    while not cluster.down:
        for child in [*cluster.dead, *(each for each in gateways if not each.alive)]:
            if child.name not in mourned:
                mourned.add(child.name)
                forward("specsplit", f"{_obituary(child)} ended unexpectedly; the cluster goes on without it")
        time.sleep(0.2)
    return cluster.dead


def _obituary(child: Process) -> str:
    return f"{child.name} (status {child.process.returncode})"


def forward(name: str, line: str) -> None:
    """Write one line of a child's output to stderr, with its name before it."""
    sys.stderr.write(printable(f"{name} | {line}", "\t") + "\n")
    sys.stderr.flush()


def _print_addresses(cluster: LocalCluster, gateways: Sequence[Gateway]) -> None:
    for child in cluster.children:
        say(f"{child.name} {child.address}")
    for gateway in gateways:
        say(f"{gateway.name} {gateway.url}")
    how = shlex.join(["--address", cluster.address, *as_options(cluster.address, cluster.transport)])
    say(f"ready: specsplit generate {how} -p '...'; Ctrl-C ends it")
    sys.stdout.flush()

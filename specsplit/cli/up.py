"""`specsplit up`: a local cluster until Ctrl-C."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specsplit.cli.failures import fail
from specsplit.cli.local import Child, LocalCluster
from specsplit.cli.options import ADDRESS
from specsplit.cli.serve import load_settings
from specsplit.cli.signals import sigterm_as_ctrl_c
from specsplit.errors import InvalidRequest
from specsplit.settings import CoordinatorSettings


class DrafterChoice(StrEnum):
    """What the local drafters propose with."""

    STANDALONE = "standalone"
    NGRAM = "ngram"
    NONE = "none"


def up(
    model: Annotated[Path, typer.Option("--model", metavar="FOLDER", help="The target.")],
    draft_model: Annotated[
        Path | None, typer.Option("--draft-model", metavar="FOLDER", help="The draft model; needed for standalone.")
    ] = None,
    drafters: Annotated[int, typer.Option("--drafters", min=0, help="How many drafters.")] = 1,
    verifiers: Annotated[int, typer.Option("--verifiers", min=1, help="How many verifiers.")] = 1,
    drafter: Annotated[
        DrafterChoice | None,
        typer.Option("--drafter", help="Kind of the drafters; standalone with a draft model, else ngram, if left out."),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the coordinator listens.")
    ] = ADDRESS,
) -> None:
    """Run a coordinator, verifiers and drafters on this machine until Ctrl-C. It goes on without a drafter that dies."""
    kind = drafter or (DrafterChoice.NGRAM if draft_model is None else DrafterChoice.STANDALONE)
    check_folder("--model", model)
    if kind is DrafterChoice.STANDALONE and drafters:
        if draft_model is None:
            raise InvalidRequest("--draft-model", "is required for standalone drafters")
        check_folder("--draft-model", draft_model)
    kinds = [] if kind is DrafterChoice.NONE else [kind.value] * drafters
    # What is wrong with them is said here, not by a child that ends.
    load_settings(CoordinatorSettings, model=model, listen=listen)
    cluster = LocalCluster(model, draft_model, verifiers=verifiers, drafters=kinds, listen=listen, listener=forward)
    watch(cluster)


def watch(cluster: LocalCluster) -> None:
    """Run the cluster until Ctrl-C or SIGTERM; exit 1 if the coordinator or the last verifier ends by itself before."""
    try:
        with sigterm_as_ctrl_c():
            dead = _run(cluster)
    except KeyboardInterrupt:
        return
    fail(f"the cluster is down; ended unexpectedly: {', '.join(map(_obituary, dead))}", 1)


def _run(cluster: LocalCluster) -> list[Child]:
    """Until the cluster is down: who ended by itself. Raises KeyboardInterrupt on Ctrl-C, with everyone down."""
    mourned: set[str] = set()
    with cluster:
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
    """One line of a child's output, with its name before it, to stderr."""
    sys.stderr.write(f"{name} | {line}\n")
    sys.stderr.flush()


def check_folder(option: str, folder: Path) -> None:
    """Raise InvalidRequest, naming the option, if there is no such folder."""
    if not folder.is_dir():
        raise InvalidRequest(option, f"there is no folder {folder}")


def _print_addresses(cluster: LocalCluster) -> None:
    for child in cluster.children:
        typer.echo(f"{child.name} {child.address}")
    typer.echo(f"ready: specsplit generate --address {cluster.address} -p '...'; Ctrl-C ends it")
    sys.stdout.flush()

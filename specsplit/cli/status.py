"""`specsplit status`: who is in the cluster, live."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from specsplit.cli.options import ADDRESS, AddressOption, TlsCaOption, transport
from specsplit.client import Client
from specsplit.membership import Cluster, Member, Role
from specsplit.values import ModelInfo

WIDE = 180
"""Columns of a table that goes to a file or a pipe: nothing is cut off."""


def status(
    address: AddressOption = ADDRESS,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    interval_s: Annotated[float, typer.Option("--interval-s", min=0.1, help="Time between updates.")] = 1.0,
    tls_ca: TlsCaOption = None,
) -> None:
    """Show the cluster: members, load, requests. Ctrl-C ends it."""
    with Client(address, transport(tls_ca)) as client:
        if once:
            Console(width=None if sys.stdout.isatty() else WIDE).print(table(client.cluster(timeout_s=5), address))
            return
        with Live(table(client.cluster(timeout_s=5), address), auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval_s)
                    live.update(table(client.cluster(timeout_s=5), address), refresh=True)
            except KeyboardInterrupt:
                return


def table(cluster: Cluster, address: str) -> Table:
    """Make a table of the cluster."""
    title = f"{address}: {cluster.running} running, {cluster.queued} queued"
    drawn = Table(title=title, title_justify="left")
    for heading in ("member", "is", "model", "reads", "address"):
        drawn.add_column(heading)
    for heading in ("sessions", "waiting", "free pages", "steps", "step ms", "silent ms"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("state")
    for member in sorted(cluster.members, key=lambda member: (not _is_verifier(member), member.member_id)):
        drawn.add_row(*_cells(member))
    return drawn


def _cells(member: Member) -> list[str]:
    load, role = member.load, member.role
    what = "verifier" if isinstance(role, ModelInfo) else f"{role.kind.value} drafter"
    pages = f"{load.free_pages}/{load.total_pages}" if load.total_pages else "-"
    return [
        member.member_id,
        what,
        role.model or "-",
        _reads(role),
        member.address,
        f"{load.sessions}/{member.max_sessions}",
        str(load.waiting),
        pages,
        str(load.steps),
        f"{load.step_ms:.1f}",
        str(member.silent_ms),
        "draining" if member.draining else "ready",
    ]


def _reads(role: Role) -> str:
    """Say which hidden states of the target a head reads."""
    if isinstance(role, ModelInfo) or not role.features:
        return "-"
    return f"layers {role.features.layer_names}"


def _is_verifier(member: Member) -> bool:
    return isinstance(member.role, ModelInfo)

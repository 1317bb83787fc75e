"""`specsplit status`: who is in the cluster, live."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer
from rich.live import Live

from specsplit.cli.adapters_view import ADAPTERS, adapter_rows
from specsplit.cli.cluster_view import DRAFTERS, MEMBERS, SPECULATION, ordered, view
from specsplit.cli.columns import explained
from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.say import say
from specsplit.cli.screen import WIDE, Screen
from specsplit.client import Client
from specsplit.membership import Cluster, Member
from specsplit.settings import TransportSettings
from specsplit.values import ModelInfo
from specsplit.values.bounds import MOST_SECONDS

TIMEOUT_S = 5
_TABLES, _AROUND = 3, 9
"""Tables on a screen, beside that of adapters, and the lines of one beside its rows."""


@with_transport
@explained(members=MEMBERS, adapters=ADAPTERS, speculation=SPECULATION, drafters=DRAFTERS)
def status(
    *,
    address: AddressOption = ADDRESS,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, max=MOST_SECONDS, help="Time between updates.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, one for each update.")] = False,
    transport: TransportSettings,
) -> None:
    """Show the cluster: members, load, requests. Ctrl-C ends it.

    On a terminal the tables stay in place. In a pipe or file they are printed for each update, as wide as COLUMNS says. Columns for
    which there is no room are named below.
    """
    screen = Screen(width=WIDE)
    with Client(address, transport) as client:
        clusters = _updates(lambda: client.cluster(timeout_s=TIMEOUT_S), None if once else interval_s)
        try:
            if as_json:
                for cluster in clusters:
                    say(json.dumps(as_object(cluster, address, datetime.now(UTC))))
            elif once or not screen.is_terminal:
                for cluster in clusters:
                    screen.print(view(cluster, address))
                    screen.file.flush()
            else:
                _stay(screen, clusters, address)
        except KeyboardInterrupt:
            return


def _updates(ask: Callable[[], Cluster], interval_s: float | None) -> Iterator[Cluster]:
    """The cluster again and again; without an interval once."""
    yield ask()
    while interval_s is not None:
        time.sleep(interval_s)
        yield ask()


def _stay(screen: Screen, clusters: Iterator[Cluster], address: str) -> None:
    """Draw over what was drawn, with as many rows as the terminal has lines for."""
    with Live(console=screen, auto_refresh=False) as live:
        for cluster in clusters:
            tables = _TABLES + bool(adapter_rows(cluster.members))
            live.update(view(cluster, address, max(1, screen.height // tables - _AROUND)), refresh=True)


def as_object(cluster: Cluster, address: str, now: datetime) -> dict[str, object]:
    """Make the object that --json prints. Its names stay; docs/operations.md has them."""
    totals = {name: value for name, value in vars(cluster).items() if name != "members"}
    time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": time, "address": address, **totals, "members": [_member(each) for each in ordered(cluster)]}


def _member(member: Member) -> dict[str, object]:
    """All that is known of a member; what it is stands below the name of its role, which is absent from the other's."""
    values = asdict(member)
    role = "verifier" if isinstance(member.role, ModelInfo) else "drafter"
    return {role if name == "role" else name: _finite(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    """Put null for infinities and NaN, for which JSON has no numbers."""
    match value:
        case dict():
            return {name: _finite(each) for name, each in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_finite(each) for each in cast("Sequence[object]", value)]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value

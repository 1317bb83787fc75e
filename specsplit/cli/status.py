"""`specsplit status`: who is in the cluster, live."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.screen import WIDE, Screen, text
from specsplit.client import Client
from specsplit.membership import Cluster, Member, Role
from specsplit.settings import TransportSettings
from specsplit.values import Estimate, ModelInfo, Plan, SpeculationReport
from specsplit.values.bounds import MOST_SECONDS


@with_transport
def status(
    *,
    address: AddressOption = ADDRESS,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.1, max=MOST_SECONDS, help="Time between updates.")
    ] = 1.0,
    transport: TransportSettings,
) -> None:
    """Show the cluster: members, load, requests. Ctrl-C ends it."""
    with Client(address, transport) as client:
        if once:
            Screen(width=WIDE).print(tables(client.cluster(timeout_s=5), address))
            return
        with Live(tables(client.cluster(timeout_s=5), address), console=Screen(width=WIDE), auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval_s)
                    live.update(tables(client.cluster(timeout_s=5), address), refresh=True)
            except KeyboardInterrupt:
                return


def tables(cluster: Cluster, address: str) -> RenderableType:
    """Make the tables of the cluster: its members, what speculation brings each verifier, and what each drafter brings it."""
    speculating = [member for member in _sorted(cluster) if member.speculation is not None]
    drawn: list[RenderableType] = [table(cluster, address)]
    if speculating:
        drawn += [_speculation(speculating), *_without_drafts(speculating)]
    if any(member.speculation is not None and member.speculation.drafters for member in speculating):
        drawn.append(_drafters(speculating))
    return Group(*drawn)


def table(cluster: Cluster, address: str) -> Table:
    """Make a table of the cluster."""
    happened = f"{cluster.failovers} failovers, {cluster.preemptions} preemptions so far"
    title = f"{address}: {cluster.running} running, {cluster.queued} queued; {happened}"
    drawn = Table(title=title, title_justify="left")
    for heading in ("member", "is", "model", "reads", "address"):
        drawn.add_column(heading, overflow="fold")
    for heading in ("sessions", "waiting", "free pages", "steps", "step ms", "silent ms"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("state")
    for member in _sorted(cluster):
        drawn.add_row(*_cells(member))
    return drawn


def _sorted(cluster: Cluster) -> list[Member]:
    """Sort the members: verifiers first, then by member id."""
    return sorted(cluster.members, key=lambda member: (not _is_verifier(member), member.member_id))


def _speculation(members: list[Member]) -> Table:
    caption = "tokens/s: what the controller expects of its plan; as set: of the plan of the settings"
    drawn = Table(title="speculation, lately", title_justify="left", caption=caption, caption_justify="left")
    for heading in ("verifier", "controller", "plan"):
        drawn.add_column(heading, no_wrap=heading == "plan")
    for heading in ("accept length", "hit rate", "step ms", "token us", "tokens/s", "as set", "gain"):
        drawn.add_column(heading, justify="right")
    for member in members:
        report = member.speculation
        assert report is not None, "the others were left out"
        drawn.add_row(member.member_id, report.adaptive, _plan(member.plan), *_brought(report))
    return drawn


def _without_drafts(members: list[Member]) -> list[RenderableType]:
    """Say of each verifier that drafts nothing why."""
    told = [
        (member.member_id, None if member.speculation is None else member.speculation.no_drafts) for member in members
    ]
    return [text(f"{name}: {why.sentence}") for name, why in told if why is not None]


def _plan(plan: Plan | None) -> str:
    if plan is None:
        return "-"
    if not plan.speculates:
        return "no drafts"
    return f"{plan.num_steps} deep, {plan.num_draft_tokens} tokens"


def _brought(report: SpeculationReport) -> list[str]:
    return [
        f"{report.accept_length:.2f}" if report.accept_length else "-",
        f"{report.hit_rate:.0%}" if report.accept_length else "-",
        f"{report.step_s * 1e3:.1f}" if report.step_s else "-",
        f"{report.token_s * 1e6:.0f}" if report.token_s else "-",
        *_expected(report.estimate),
    ]


def _expected(estimate: Estimate | None) -> list[str]:
    """What the controller expects of its plan, and of the plan of the settings."""
    if estimate is None:
        return ["-", "-", "-"]
    return [f"{estimate.rate:.0f}", f"{estimate.static_rate:.0f}", f"{estimate.gain:+.0%}"]


def _drafters(members: list[Member]) -> Table:
    drawn = Table(title="drafters, as verifiers see them lately", title_justify="left")
    for heading in ("verifier", "drafter"):
        drawn.add_column(heading)
    for heading in ("sessions", "steps seen", "accepted a step", "held ms a step", "round trip ms"):
        drawn.add_column(heading, justify="right")
    for member in members:
        for each in () if member.speculation is None else member.speculation.whole_drafters:
            drawn.add_row(
                member.member_id,
                each.member_id,
                str(each.sessions),
                f"{each.steps:.0f}",
                f"{each.accepted:.2f}",
                f"{each.held_s * 1e3:.1f}",
                f"{each.round_trip_s * 1e3:.1f}" if each.round_trip_s else "-",
            )
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
        _state(member),
    ]


def _state(member: Member) -> str:
    state, group, wave = "draining" if member.draining else "ready", member.group, member.wave
    if group is None:
        return state
    does = None if wave is None else wave.state(member.load.sessions)
    where = "" if wave is None else f", {does} {'after' if wave.parked else 'in'} wave {wave.number}"
    return f"{state}, rank {group.rank} of {group.size}{where}"


def _reads(role: Role) -> str:
    """Say which hidden states of the target a head reads."""
    if isinstance(role, ModelInfo) or not role.features:
        return "-"
    return f"layers {role.features.layer_names}"


def _is_verifier(member: Member) -> bool:
    return isinstance(member.role, ModelInfo)

"""`specsplit plan`: how much a running cluster speculates, and who decides that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.say import say
from specsplit.cli.screen import WIDE, Screen, joined, text
from specsplit.client import Client
from specsplit.errors import InvalidRequest
from specsplit.membership import Member, PlanTold
from specsplit.settings import TransportSettings
from specsplit.values import Adaptive, Control, PlanChanges

TIMEOUT_S = 5


@with_transport
def plan(
    *,
    adaptive: Annotated[
        Adaptive | None,
        typer.Option(
            "--adaptive",
            help="The controller: who decides what the options below leave open. "
            "ema goes by each verifier's own adaptive_config, or by SGLang's tiers; no file is sent.",
        ),
    ] = None,
    max_draft_tokens: Annotated[
        int | None,
        typer.Option("--max-draft-tokens", help="The most that goodput gives a session in one step, root included."),
    ] = None,
    num_steps: Annotated[
        int | None, typer.Option("--num-steps", help="Deepest node that a step may verify; 0 turns speculation off.")
    ] = None,
    topk: Annotated[int | None, typer.Option("--topk", help="Children of one node in one step, at most.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option("--num-draft-tokens", help="Tokens of a session in one step, root included, at most.")
    ] = None,
    wait_budget_us: Annotated[
        int | None, typer.Option("--wait-budget-us", help="Longest wait for grows after a commit.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First undo every earlier change: back to the verifiers' own settings.")
    ] = False,
    address: AddressOption = ADDRESS,
    transport: TransportSettings,
) -> None:
    """Change the plan of every verifier, and its controller, from the next step on; without options show what is in force, and why.

    Changing takes the role operator, looking that of a client or operator.
    What a request fixed for itself stays. Verifiers that join later are told too; a coordinator that starts anew knows of no changes.
    """
    if max_draft_tokens is not None and adaptive in (Adaptive.STATIC, Adaptive.EMA):
        raise InvalidRequest(
            "max_draft_tokens", f"bounds goodput, and adaptive is {adaptive}; leave one of the two out"
        )
    changes = PlanChanges(num_steps, topk, num_draft_tokens, wait_budget_us)
    control = Control(adaptive, max_draft_tokens)
    with Client(address, transport) as client:
        if reset or (changes, control) != (PlanChanges(), Control()):
            say(sentence(client.set_plan(changes, control, reset=reset, timeout_s=TIMEOUT_S)))
            return
        told, members = client.plan(timeout_s=TIMEOUT_S), client.cluster(timeout_s=TIMEOUT_S).members
        say(sentence(told))
        Screen(width=WIDE).print(in_force(told, members))


def sentence(told: PlanTold) -> str:
    """Say what is changed now, and for whom."""
    said = {**vars(told.control), **vars(told.changes)}
    changed = " ".join(f"{name}={value}" for name, value in said.items() if value is not None)
    return f"plan: {changed or 'as each verifier is set'}; verifiers: {told.members}"


def in_force(told: PlanTold, members: tuple[Member, ...]) -> Table:
    """Make a table of the plan that every verifier has reported, and of where each part of it comes from."""
    caption = (
        "What a request fixes for itself stands above the operator, the operator above the controller, "
        "and the controller above the settings."
    )
    drawn = Table(caption=caption, caption_justify="left")
    drawn.add_column("verifier")
    for name in ("controller", "max_draft_tokens", *vars(PlanChanges())):
        drawn.add_column(name)
    for member in sorted(members, key=lambda member: member.member_id):
        if member.plan is not None and member.speculation is not None:
            drawn.add_row(member.member_id, *_cells(member, told))
    return drawn


def _cells(member: Member, told: PlanTold) -> Iterator[RenderableType]:
    """Values with their sources, as the verifier said them last: it may be a heartbeat behind the operator."""
    report, plan = member.speculation, member.plan
    assert report is not None and plan is not None, "only those that have said are shown"
    wanted = told.control.adaptive
    yield _cell(report.adaptive, "operator" if wanted is not None and wanted.value == report.adaptive else "settings")
    bound, most = report.max_draft_tokens, told.control.max_draft_tokens
    yield "-" if bound is None else _cell(bound, "operator" if bound == most else "settings")
    for name, value in vars(plan).items():
        if value == getattr(told.changes, name):
            yield _cell(value, "operator")
        else:
            yield _cell(value, "settings" if value == getattr(report.launched, name) else "controller")


def _cell(value: object, source: str) -> RenderableType:
    shown = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
    return joined(f"{shown} ", text(source, "dim"))

"""`specsplit plan`: how much a running cluster speculates, and who decides that."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specsplit.cli.options import ADDRESS, AddressOption, with_transport
from specsplit.cli.plan_view import InForce, as_objects
from specsplit.cli.say import say
from specsplit.cli.screen import WIDE, Screen
from specsplit.client import Client
from specsplit.errors import InvalidRequest
from specsplit.membership import Member, PlanInForce
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
    as_json: Annotated[bool, typer.Option("--json", help="Show what is in force as one JSON object.")] = False,
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
            if as_json:
                raise InvalidRequest("json", "shows what is in force; leave it out, or what is to be changed")
            say(sentence(client.set_plan(changes, control, reset=reset, timeout_s=TIMEOUT_S)))
            return
        _look(client, as_json=as_json)


def sentence(in_force: PlanInForce) -> str:
    """Say what is changed now, and for whom."""
    said = {**vars(in_force.control), **vars(in_force.changes)}
    changed = " ".join(f"{name}={value}" for name, value in said.items() if value is not None)
    return f"plan: {changed or 'as each verifier is set'}; verifiers: {in_force.members}"


def as_object(in_force: PlanInForce, members: tuple[Member, ...]) -> dict[str, object]:
    """Make the object that --json prints. Its names stay; docs/operations.md has them."""
    changed = {
        name: value for name, value in {**vars(in_force.control), **vars(in_force.changes)}.items() if value is not None
    }
    return {"told": in_force.members, "changed": changed, "verifiers": as_objects(members, in_force)}


def _look(client: Client, *, as_json: bool) -> None:
    in_force, members = client.plan(timeout_s=TIMEOUT_S), client.cluster(timeout_s=TIMEOUT_S).members
    if as_json:
        say(json.dumps(as_object(in_force, members)))
    else:
        say(sentence(in_force))
        Screen(width=WIDE).print(InForce(in_force, members))

"""`specsplit plan`: how much a running cluster speculates."""

from __future__ import annotations

from typing import Annotated

import typer

from specsplit.cli.options import ADDRESS, AddressOption, TlsCaOption, transport
from specsplit.client import Client
from specsplit.membership import PlanTold
from specsplit.values import PlanChanges

TIMEOUT_S = 5


def plan(
    *,
    num_steps: Annotated[
        int | None, typer.Option("--num-steps", help="Deepest node that a step may verify; 0 turns speculation off.")
    ] = None,
    topk: Annotated[int | None, typer.Option("--topk", help="Children of one node in one step, at most.")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option("--num-draft-tokens", help="Tokens of a session in one step, root included, at most.")
    ] = None,
    wait_budget_us: Annotated[
        int | None, typer.Option("--wait-budget-us", help="Longest wait for a grow after a miss.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First undo every earlier change: back to the verifiers' own plans.")
    ] = False,
    address: AddressOption = ADDRESS,
    tls_ca: TlsCaOption = None,
) -> None:
    """Change the plan of every verifier, from the next step on; without options show what is changed.

    What a request fixed for itself stays. Verifiers that join later are told too; a coordinator that starts anew knows of no changes.
    """
    changes = PlanChanges(num_steps, topk, num_draft_tokens, wait_budget_us)
    with Client(address, transport(tls_ca)) as client:
        typer.echo(sentence(client.set_plan(changes, reset=reset, timeout_s=TIMEOUT_S)))


def sentence(told: PlanTold) -> str:
    """Say what is changed now, and for whom."""
    changed = " ".join(f"{name}={value}" for name, value in vars(told.changes).items() if value is not None)
    return f"plan: {changed or 'as each verifier is set'}; verifiers: {told.members}"

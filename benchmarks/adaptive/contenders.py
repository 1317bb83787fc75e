"""Who is compared: static plans, controllers, and oracles."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.lab.scenario import Policy
from specsplit.values import PlanChanges


@dataclass(frozen=True)
class Contender:
    """One way to plan a run."""

    name: str
    policy: Policy = Policy.STATIC
    plan: PlanChanges = field(default_factory=PlanChanges)
    """The plan of every request; a controller needs one that says nothing."""
    waits: bool = True
    """False if it is an oracle that never waits for drafters."""
    hindsight: bool = False
    """True if its drafters say how often their tokens are right, as far as that can be known without the text."""


def static(num_steps: int, num_draft_tokens: int) -> Contender:
    """The plan of so many steps and tokens, the root included, in every step of the run."""
    name = f"static: {num_steps} steps, {num_draft_tokens} tokens" if num_steps else "static: no drafts"
    return Contender(name, plan=PlanChanges(num_steps=num_steps, num_draft_tokens=num_draft_tokens))


STATIC = [static(*plan) for plan in ((0, 1), (2, 3), (3, 4), (5, 6), (5, 16))]
CONTROLLERS = [Contender(policy.value, policy) for policy in (Policy.EMA, Policy.GOODPUT)]
ORACLES = [Contender(policy.value, policy, waits=False) for policy in (Policy.KNOWS_SURVIVALS, Policy.KNOWS_TOKENS)]
"""They plan every step by what it truly costs, and by how often nodes like these are accepted, or by what the target will say.

Waiting as a static plan does brings them nothing to speak of on this load, and costs up to a twentieth.
"""
HINDSIGHT = Contender("goodput: true probabilities", Policy.GOODPUT, hindsight=True)
"""What a policy might come to at best that does not know the text: its drafters know how often they are right, in every request."""

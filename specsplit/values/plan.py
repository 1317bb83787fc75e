"""How much to speculate, and what somebody wants different about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from specsplit.values.checks import require, said

MOST_DRAFT_TOKENS: Final = 256
"""Tokens of a session in one step under any plan, the root included."""


@dataclass(frozen=True)
class Plan:
    """How much to speculate for a session. Raises InvalidRequest for a value out of range."""

    num_steps: int = 5
    """Deepest node below the root that a step may verify, beyond what a constraint forces there; 0 turns speculation off."""
    topk: int = 4
    """At most this many children of one node are verified in one step."""
    num_draft_tokens: int = 16
    """At most this many tokens of the session in one step, the root included."""
    wait_budget_us: int = 20_000
    """Longest wait for grows after a commit, in microseconds."""
    draft_ahead: bool = True
    """False makes the drafter rest while a step is in flight (the serial loop; for comparison)."""

    def __post_init__(self) -> None:
        require(0 <= self.num_steps <= 64, "plan.num_steps", f"is {self.num_steps}, expected 0..64")
        require(1 <= self.topk <= 64, "plan.topk", f"is {self.topk}, expected 1..64")
        require(
            1 <= self.num_draft_tokens <= MOST_DRAFT_TOKENS,
            "plan.num_draft_tokens",
            f"is {self.num_draft_tokens}, expected 1..{MOST_DRAFT_TOKENS}",
        )
        require(
            0 <= self.wait_budget_us <= 60_000_000,
            "plan.wait_budget_us",
            f"is {self.wait_budget_us}, expected 0..60,000,000",
        )

    @property
    def speculates(self) -> bool:
        """False if a step under this plan takes the root alone."""
        return self.num_steps > 0 and self.num_draft_tokens > 1


@dataclass(frozen=True)
class PlanChanges:
    """What a request, or an operator, wants different from the verifier's default plan; None leaves a field as it is.

    Raises InvalidRequest for a value out of range.
    """

    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    wait_budget_us: int | None = None
    draft_ahead: bool | None = None

    def __post_init__(self) -> None:
        self.over(Plan())

    def over(self, default: Plan) -> Plan:
        """The default with these changes."""
        return replace(default, **said(self))

    def after(self, earlier: PlanChanges) -> PlanChanges:
        """Combine these changes with those made before, which hold where these say nothing."""
        return replace(earlier, **said(self))

"""What a run of the laboratory is to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.lab.arrivals import ONE_CALLER, Arrivals
from benchmarks.lab.cost import EXPANSION_2, STEP_20, ExpansionCurve, StepCurve
from benchmarks.lab.transport import DIRECT, Link
from specsplit.values import DrafterKind, Host, PlanChanges


class Policy(StrEnum):
    """Who plans the steps."""

    STATIC = "static"
    """The product's planner under a plan that stays."""
    EMA = "ema"
    """The product's planner under SGLang's tiers."""
    GOODPUT = "goodput"
    """The product's planner, where every step is chosen by what it commits per second."""
    KNOWS_SURVIVALS = "oracle: survivals"
    """The best plan of every step for whoever knows how often nodes like these are accepted, and what a step costs."""
    KNOWS_TOKENS = "oracle: tokens"
    """The best plan of every step for whoever knows what the target will say."""
    DRAFTS_TOKENS = "oracle: tokens, drafts too"
    """The best plan of every step for whoever knows what the target will say; drafters grow only the right nodes among their candidates."""


@dataclass(frozen=True)
class DrafterSpec:
    """One drafter. The defaults of how it grows are those of its settings."""

    kind: DrafterKind = DrafterKind.STANDALONE
    cost: ExpansionCurve = EXPANSION_2
    expand_width: int = 256
    node_us: float = 1.0
    children: int = 16
    expand_levels: int = 1
    """More cost nothing here: the curve says what one level costs."""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.cost.base_ms:g} ms"


SERIAL = PlanChanges(draft_ahead=False, wait_budget_us=1_000_000)
"""Draft, then verify."""


@dataclass(frozen=True)
class Scenario:
    """One row of a table."""

    name: str
    drafters: tuple[DrafterSpec, ...] = (DrafterSpec(),)
    verifiers: int = 1
    policy: Policy = Policy.STATIC
    step: StepCurve = STEP_20
    link: Link = DIRECT
    temperature: float = 0.0
    plan: PlanChanges = field(default_factory=PlanChanges)
    max_nodes: int = 4096
    arrivals: Arrivals = ONE_CALLER
    requests: int = 4
    prompt: int | None = 64
    """Tokens of a held-out text; None: messages of a chat."""
    said: int = 1
    """Times that a prompt says the same: its first tokens, which are that part of it."""
    new: int = 96
    """Tokens that each request asks for."""
    waits: bool = True
    """False if an oracle steps without waiting for drafters."""
    warm: bool = False
    """True if drafters have the calibrations of an earlier run of the same."""
    shared_cores: int = 0
    """Cores that a verifier computes on with as many threads, and its only drafter with one; 0: each has cores of its own."""
    priced: bool = True
    """False if drafters are not told that they share cores."""
    lookup: bool = False
    """True if verifiers look up, beside drafters too."""
    beside_us: float = 0.0
    """Time that the host takes, beside the forward, for a session in a step that is looked up for beside its drafter: half of it to merge,
    each time that this is done, and half when the step is over."""
    rest_trials: bool = False
    """goodput: True if drafters are told to rest while more tokens a second are committed without them."""

    def __post_init__(self) -> None:
        if self.shared_cores and len(self.drafters) > 1:
            raise ValueError("cores are shared with one drafter at most")

    @property
    def hosts(self) -> tuple[Host, Host]:
        """Where verifiers and drafters compute."""
        cores = Host.ranges(range(self.shared_cores))
        machine = "lab" if self.shared_cores else ""
        return Host(machine, cores, self.shared_cores), Host(machine, cores, 1)

    @property
    def knows_text(self) -> bool:
        """True if somebody has to be told what the target will say."""
        return self.policy in (Policy.KNOWS_TOKENS, Policy.DRAFTS_TOKENS)

    @property
    def drafted_by(self) -> str:
        """Who drafts."""
        return "; ".join([*map(str, self.drafters), *(["lookup"] if self.lookup else [])]) or "none"

    @property
    def mode(self) -> str:
        """Ahead or serial."""
        return "serial" if self.plan.draft_ahead is False else "ahead"

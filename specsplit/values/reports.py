"""What a verifier says of its speculation: who decides about it, and what it brought lately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specsplit.values.adaptive import Estimate
from specsplit.values.no_drafts import NoDrafts
from specsplit.values.plan import Plan


@dataclass(frozen=True)
class DrafterReport:
    """What one drafter brought one verifier lately, in sessions of one kind of text. What is older counts less and less."""

    member_id: str
    sessions: int = 0
    """Sessions that the drafter drafts for now."""
    steps: float = 0.0
    """Session steps that it drafted for: how much this report rests on."""
    accepted: float = 0.0
    """Nodes of the drafter accepted in such a step, the mean."""
    held_s: float = 0.0
    """For how long such a step was held back for the drafter, in seconds, the mean."""
    round_trip_s: float = 0.0
    """From a commit to the first grow made after it, in seconds, the mean; 0: none was seen."""
    sampled: bool = False
    """In sessions whose temperature is above 0; False: in greedy ones."""
    movable: int = 0
    """Sessions among these whose callers asked for no kind of drafter."""


@dataclass(frozen=True)
class SpeculationReport:
    """How a verifier speculates."""

    adaptive: str
    """Name of the controller in force; one that this build knows or not."""
    max_draft_tokens: int | None = None
    """The controller's bound on num_draft_tokens; None: it has none."""
    launched: Plan = field(default_factory=Plan)
    """The plan of the settings."""
    accept_length: float = 0.0
    """Tokens that a session with a drafter committed in a step lately, bonus included; 0: there was none."""
    hit_rate: float = 0.0
    """The share of its commits whose bonus was a node; 0: there was no commit."""
    step_s: float = 0.0
    """Seconds of a step lately; 0: there was none."""
    token_s: float = 0.0
    """Seconds of a step that one more token costs."""
    estimate: Estimate | None = None
    """Why the plan in force is in force, as the controller sees it; None: it has not said."""
    drafters: tuple[DrafterReport, ...] = ()
    """The drafters that sessions have had lately: each once for greedy and once for sampled ones, if it has had both."""
    no_drafts: NoDrafts | None = None
    """Why steps had no drafts lately, or hardly any; None: they had some, there was no step, or it is not known."""

    @property
    def whole_drafters(self) -> tuple[DrafterReport, ...]:
        """Every drafter once, greedy and sampled sessions together."""
        parts: dict[str, list[DrafterReport]] = {}
        for report in self.drafters:
            parts.setdefault(report.member_id, []).append(report)
        return tuple(_together(each) for each in parts.values())


def _together(parts: Sequence[DrafterReport]) -> DrafterReport:
    """Sum up what is counted, and take the mean of the rest by steps."""
    return DrafterReport(
        parts[0].member_id,
        sum(each.sessions for each in parts),
        sum(each.steps for each in parts),
        _mean(parts, lambda each: each.accepted),
        _mean(parts, lambda each: each.held_s),
        _mean([each for each in parts if each.round_trip_s], lambda each: each.round_trip_s),
        movable=sum(each.movable for each in parts),
    )


def _mean(parts: Sequence[DrafterReport], value: Callable[[DrafterReport], float]) -> float:
    steps = sum(each.steps for each in parts)
    return sum(each.steps * value(each) for each in parts) / steps if steps else 0.0

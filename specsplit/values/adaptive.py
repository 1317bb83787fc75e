"""Who decides how much is speculated, and why the plan in force is in force."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Adaptive(StrEnum):
    """Who decides how much is speculated where nobody else says."""

    STATIC = "static"
    """Nobody: it stays at the default plan."""
    EMA = "ema"
    """SGLang's tiers of num_steps, moved by an average of accepted drafts."""
    GOODPUT = "goodput"
    """What commits the most tokens per second, by acceptance and cost as measured."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A controller's own estimate of what the plan in force brings and costs, which says why it is in force."""

    accept_length: float
    """Tokens that a session commits in a step, bonus included, lately."""
    step_s: float
    """Seconds of a step at the present load."""
    token_s: float
    """Seconds of a step that one more token costs."""
    rate: float
    """Committed tokens per second of all sessions under the plan in force."""
    static_rate: float
    """The rate expected under the plan that the verifier was launched with."""

    @property
    def gain(self) -> float:
        """How much more than the launched plan brings, as a share of that."""
        return self.rate / self.static_rate - 1 if self.static_rate > 0 else 0.0

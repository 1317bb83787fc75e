"""What a session came to, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specsplit.values.lean import lean


class Miss(StrEnum):
    """Why the bonus of a commit was not a node of the speculation."""

    WRONG = "wrong"
    """There were nodes in its place, and none of them was the bonus."""
    LATE = "late"
    """There was no node in its place, and the drafter had not said that it rests: growing, or the wire, took too long."""
    NONE = "none"
    """There was no node in its place, and the drafter rested: it had nothing more to propose there."""


class FailoverCause(StrEnum):
    """Why a session went on with another verifier, or with the same one come back."""

    LOST = "lost"
    """The verifier is no longer in the cluster."""
    DRAINED = "drained"
    """The verifier's time to drain was over."""
    FAILED = "failed"
    """The verifier is in the cluster, and failed the session or handed it back."""
    PREEMPTED = "preempted"
    """The verifier had no pages for it, and another one had."""


@dataclass(frozen=True)
class Usage:
    """Tokens in and out of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    """Tokens of the prompt whose KV the verifier had already."""


@lean(slots=False)
class SpeculationStatistics:
    """What speculation did for one session, summed over its steps (prefill not counted)."""

    steps: int = 0
    """Forward passes of the target that this session had rows in."""
    drafted: int = 0
    """Nodes verified, roots not counted."""
    accepted: int = 0
    """Nodes accepted (the sum of num_correct_drafts)."""
    hits: int = 0
    """Commits whose bonus was a node of the speculation, so that its subtree survived."""
    misses: int = 0
    """Commits whose bonus was not."""

    @classmethod
    def sum(cls, parts: Sequence[SpeculationStatistics]) -> SpeculationStatistics:
        """The sums over several sessions."""
        return cls(*(sum(vars(part)[name] for part in parts) for name in vars(cls())))

    @property
    def accept_length(self) -> float:
        """Committed tokens per step, bonus included; 0 before the first step."""
        return (self.accepted + self.steps) / self.steps if self.steps else 0.0

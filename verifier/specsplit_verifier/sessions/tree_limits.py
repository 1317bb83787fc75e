"""How much of a speculation a step may take, and what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specsplit.grammar import GrammarState


class TreeLimits(NamedTuple):
    """How much of a speculation a step may take, and what comes before it."""

    num_draft_tokens: int
    """Tokens of a session in the step, the root included."""
    topk: int
    num_steps: int
    forced: Sequence[int] = ()
    """Tokens that a grammar says have to follow the root."""
    grammar: GrammarState | None = None
    """What says which tokens may follow; None: all may."""

    @property
    def of_tree(self) -> tuple[int, int, int]:
        """What a tree by itself is limited to."""
        return self[:3]

    @property
    def all_forced(self) -> bool:
        """True if what is forced leaves no place for anything else."""
        return len(self.forced) >= min(self.num_steps, self.num_draft_tokens - 1)

    def within(self, num_tokens: int) -> TreeLimits:
        """These limits with num_draft_tokens capped at `num_tokens`."""
        return self if num_tokens >= self.num_draft_tokens else TreeLimits(num_tokens, *self[1:])

    def narrows(self, other: TreeLimits) -> bool:
        """True if what is best within these limits is the beginning of what is best within the `other` ones."""
        return self.num_draft_tokens <= other.num_draft_tokens and self[1:] == other[1:]

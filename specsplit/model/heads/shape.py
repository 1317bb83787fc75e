"""The shape of what drafts from features: all that an engine has to know to run it, but its weights."""

from __future__ import annotations

from dataclasses import dataclass

from specsplit.features import FeatureNeed
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary


@dataclass(frozen=True)
class DraftShape:
    """A head or a block drafter as its engine and its peers see it."""

    kind: DrafterKind
    need: FeatureNeed
    """The hidden states of the target that a feature consists of."""
    max_context: int
    """Longest sequence that it drafts for, in tokens: the target's. Behind what it was trained on, its drafts get worse, never wrong."""
    vocabulary: Vocabulary
    """The target's: it reads and proposes the target's token ids."""
    model: str
    """Name of its folder."""

    @property
    def info(self) -> DrafterInfo:
        """What a drafter with it tells of itself."""
        return DrafterInfo(self.kind, self.model, self.vocabulary, self.max_context, self.need)


@dataclass(frozen=True)
class HeadShape(DraftShape):
    """A head has `num_steps` layers. Layer k (from 1) makes of a token u and the state that its parent left in layer k - 1 the state of
    u in layer k; in layer 0 a token's state is its fused feature. A recurrent head has one layer and feeds it its own states. Code
    counts the same layers as steps, from 0: step s is layer s + 1.
    """

    state_width: int
    """Width of a state, and of a fused feature."""
    num_steps: int
    recurrent: bool

"""What a text goes on with, for those who know it; and a drafter who does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specsplit.draft_events import Open
from specsplit.features import FeatureLayout, Features
from specsplit.tree import Ints, TokenTree
from specsplit.values import DrafterInfo
from specsplit_drafter.drafts.proposer import (
    AppliedCommit,
    Children,
    ExpansionOutcome,
    FrontierPart,
    Proposer,
    ProposerPages,
    SessionKey,
)

ALL_BUT_SURE = -1e-4
"""Log-probability of a right token."""


def following(text: Sequence[int], position: int) -> int:
    """The token behind a position of a text; -1 at its end."""
    return text[position + 1] if position + 1 < len(text) else -1


class RightProposer:
    """A proposer of whose candidates only the right ones are left, and those are all but sure. Session n writes the n-th text."""

    def __init__(self, proposer: Proposer, texts: Sequence[Sequence[int]]) -> None:
        self._proposer = proposer
        self._texts = texts
        self._trees: dict[SessionKey, TokenTree] = {}
        self.group = proposer.group
        self.graphs = proposer.graphs
        self.weights = proposer.weights
        self.max_depth = proposer.max_depth
        self.redraws = proposer.redraws
        self.distances = proposer.distances
        self.max_levels = 1  # right tokens are put in after the fact: nothing can be drawn below them before
        self.shares_root = proposer.shares_root
        self.drafts_blocks = False

    @property
    def info(self) -> DrafterInfo:
        return self._proposer.info

    @property
    def pages(self) -> ProposerPages:
        return self._proposer.pages

    @property
    def free_kv_slots(self) -> int:
        return self._proposer.free_kv_slots

    def prepare(self) -> bool:
        """Prepare as the other does."""
        return self._proposer.prepare()

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        self._proposer.open(session, tree, opened)
        self._trees[session] = tree

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        self._proposer.commit(session, applied)

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        """What the proposer says, but for wrong tokens."""
        found = self._proposer.expand(frontier)
        return [
            self._right(part, children) if isinstance(children, Children) else children
            for part, children in zip(frontier, found, strict=True)
        ]

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Do nothing: nothing is drawn below a frontier."""

    def close(self, session: SessionKey) -> None:
        self._proposer.close(session)
        del self._trees[session]

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        self._proposer.feed(session, features, layout)

    def stalled(self, session: SessionKey) -> bool:
        return self._proposer.stalled(session)

    def pending(self, session: SessionKey) -> int:
        return self._proposer.pending(session)

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        return self._proposer.take_read()

    def _right(self, part: FrontierPart, children: Children) -> Children:
        text, positions = self._texts[part.session[1]], self._trees[part.session].positions
        wanted = np.array([following(text, int(positions[slot])) for slot in part.slots])
        right = (children.tokens == wanted[:, None]) & np.isfinite(children.log_probabilities)
        return Children(wanted[:, None], np.where(right.any(axis=1), ALL_BUT_SURE, -np.inf)[:, None])

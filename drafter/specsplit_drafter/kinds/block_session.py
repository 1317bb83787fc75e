"""One session of a drafter of blocks: its committed tokens, the slots of their features, and the blocks below its nodes.

A feature is a row of the context, at the position of its token. So the context of the root is complete once the features of all tokens
before it have come, and each of its nodes sees as much: what lies between stands in its block, as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from torch import Tensor

from specsplit.features import FeatureLayout, Features
from specsplit.model.heads import BlockRows
from specsplit.model.pages.pool import PageTable
from specsplit.model.pages.tables import Slots
from specsplit.tree import Ints, TokenTree
from specsplit_drafter.drafts.feature_buffer import FeatureBuffer
from specsplit_drafter.drafts.proposer import AppliedCommit
from specsplit_drafter.kinds.block_model import BlockModel
from specsplit_drafter.kinds.session_text import SessionText


class NewContext(NamedTuple):
    """Features that are read in an expansion."""

    features: Sequence[Tensor]
    """[n, width] in order."""
    positions: Ints
    slots: Slots


class BlockSession(SessionText):
    """The committed tokens of a session, its tree, and features that are not read yet."""

    def __init__(self, model: BlockModel, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Take slots for the features of the committed tokens before the root. Raises OutOfPages, and holds none then."""
        super().__init__(tree, tokens)
        self._model: Final = model
        self._features: Final = FeatureBuffer(model.feature_dtype)
        self._table: Final = PageTable(model.pool)
        self._computed = 0
        try:
            self._table.reserve(self._root)
        except BaseException:
            self.release()
            raise

    @property
    def pending(self) -> int:
        """Committed tokens before the root whose features are not read."""
        return self._root - self._computed

    @property
    def readable(self) -> int:
        """How many of these have arrived."""
        return min(self.pending, self._features.arrived - self._computed)

    @property
    def read(self) -> int:
        """Position below which all features were read."""
        return self._computed

    @property
    def stalled(self) -> bool:
        """True if nothing can be drafted, or read, with the features that are there; behind a first token nothing ever can."""
        return self._root == 0 or (self.pending > 0 and self.readable == 0)

    def commit(self, applied: AppliedCommit) -> None:
        """Take slots for the features of the new tokens. Raises OutOfPages."""
        self._tokens.extend(applied.tokens)
        self._table.reserve(self._root)

    def feed(self, features: Features, layout: FeatureLayout) -> None:
        """Take features in, as FeatureBuffer.add does."""
        self._features.add(features, layout, self._root)

    def next_context(self, count: int) -> NewContext:
        """Take the next `count` features, which count as read then."""
        first, self._computed = self._computed, self._computed + count
        taken = self._features.take(count)
        return NewContext(taken, np.arange(first, self._computed), self._table.slots(first, self._computed))

    def shown(self, nodes: Ints) -> Ints:
        """Count the tokens behind their first that the blocks of nodes begin with [n]: those of the path, as far as there is room."""
        return np.minimum(self.positions(nodes) - self._root, self._model.most_shown)

    def blocks(self, nodes: Ints, scratch: Slots) -> BlockRows:
        """Make the blocks below nodes [n], whose keys and values go to `scratch` [n * size]. The whole context must be read."""
        size, mask = self._model.size, self._model.mask_token
        shown = self.shown(nodes)
        tokens = np.full((len(nodes), size), mask, dtype=np.int64)
        for row, node, count in zip(tokens, nodes.tolist(), shown.tolist(), strict=True):
            row[: count + 1] = [self._tokens[-1], *self.path(node)][-(count + 1) :]
        pages = self._table.upto(self._root + len(scratch), scratch)
        return BlockRows(tokens, self.positions(nodes) - shown, pages)

    def release(self) -> None:
        """Free every slot."""
        self._table.release()

"""One session of a drafter with a model: its committed tokens, the slots of its rows in every step, and the rows of an expansion.

Draft extend: after a commit the committed tokens' pending rows are computed first, in a forward in which the session has no nodes but
those that survived and have come so near to the root that they are due in lower steps, and, of a head, new ones farther down whose parents
were expanded before. The root gets its children from it; nodes that survived keep theirs. A prompt is read in the same way, in parts so
that it does not keep other sessions waiting, and with a head as its features arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from specsplit.errors import InvalidRequest
from specsplit.features import FeatureLayout, Features
from specsplit.tree import Flags, Ints, TokenTree
from specsplit_drafter.drafts.draft_model import DraftModel, ExpansionInput
from specsplit_drafter.drafts.feature_buffer import FeatureBuffer
from specsplit_drafter.drafts.proposer import UNBOUNDED, AppliedCommit
from specsplit_drafter.drafts.token_map import TokenMap
from specsplit_drafter.kinds.session_text import SessionText


class ModelSession(SessionText):
    """The committed tokens of a session, its tree, a TokenMap for every step, and features that are not read yet."""

    def __init__(self, model: DraftModel, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Take slots for the committed tokens, the root last; their rows are computed later. Raises OutOfPages, and holds none then."""
        super().__init__(tree, tokens)
        self._recurrent: Final = model.recurrent
        dtype = model.feature_dtype
        self._features = None if dtype is None else FeatureBuffer(dtype)
        # A head has no row of the first token in step 0, nor of the first two in step 1.
        skipped, exact = int(dtype is not None), dtype is None or not model.recurrent
        self._maps = [TokenMap(pool, tree, step + skipped, exact) for step, pool in enumerate(model.pools)]
        try:
            self._reserve()
        except BaseException:
            self.release()
            raise

    @property
    def pending(self) -> int:
        """Committed tokens without a row in step 0; the first token, which has none with a head, is not counted then."""
        return self.first_step.pending

    @property
    def readable(self) -> int:
        """Pending rows of step 0 that can be computed now; row i of a head is of the token at i + 1, and reads feature i."""
        arrived = UNBOUNDED if self._features is None else self._features.arrived - self.first_step.computed
        return min(self.pending, arrived)

    @property
    def read(self) -> int:
        """Position below which all features were read."""
        return self.first_step.computed

    @property
    def stalled(self) -> bool:
        """True if the root cannot be expanded, or read towards, with the features that are there; a first token never can."""
        return self._features is not None and (self._root == 0 or (self.pending > 0 and self.readable == 0))

    @property
    def first_step(self) -> TokenMap:
        """The map of its rows in step 0."""
        return self._maps[0]

    def commit(self, applied: AppliedCommit) -> None:
        """Take over slots of accepted nodes, free those of dead ones, and take some for pending tokens and due nodes. Raises OutOfPages."""
        self._tokens.extend(applied.tokens)
        for token_map in self._maps:  # all of them, before one may raise: nobody else knows whose slots are dead
            token_map.commit(applied)
        if self._features is None:  # rows of a head are read by its next step, which may be behind
            self.first_step.release_unseen()
        self._reserve()
        if not self._recurrent and applied.new_slots is not None:
            self._add_due_nodes()

    def feed(self, features: Features, layout: FeatureLayout) -> None:
        """Take features in, as FeatureBuffer.add does. Raises InvalidRequest too if the model reads none."""
        if self._features is None:
            raise InvalidRequest("features", "were sent to a drafter that reads none")
        self._features.add(features, layout, self._root)

    def context_inputs(self, nodes: Ints, count: int, number: int) -> list[ExpansionInput]:
        """Make rows of the next `count` tokens in every step that lacks them.

        Once the root is among these tokens, logits are wanted of all `nodes`, of which it is the first, with the number `number`.
        """
        inputs = [ExpansionInput() for _ in self._maps]
        stop = self.first_step.first + self.first_step.computed + count
        complete = stop == len(self._tokens)
        if self._features is not None:
            inputs[0].features += self._features.take(count)
        for step, (token_map, work) in enumerate(zip(self._maps, inputs, strict=True)):
            first, done = token_map.computed, stop - token_map.first
            if done > first:
                if step:
                    work.sources.append(self._maps[step - 1].context_slots(first, done))
                work.wanted += [number] if complete and step == 0 else ()
                work.rows.append(token_map.context_row(self._tokens, stop, [count - 1] if work.wanted else ()))
            if complete:
                self._add_nodes(step, work, nodes[1:], number + 1)
        return inputs

    def node_inputs(self, nodes: Ints, number: int) -> list[ExpansionInput]:
        """Make rows of these nodes, numbered from `number` on, in every step in which they are due."""
        inputs = [ExpansionInput() for _ in self._maps]
        for step, work in enumerate(inputs):
            self._add_nodes(step, work, nodes, number)
        return inputs

    def release(self) -> None:
        """Free every slot."""
        for token_map in self._maps:
            token_map.release()

    def _reserve(self) -> None:
        for token_map in self._maps:
            token_map.reserve(len(self._tokens))

    def _add_due_nodes(self) -> None:
        """Give expanded nodes that have come nearer to the root slots in the steps in which they are due now. Raises OutOfPages."""
        expanded = np.logical_or.reduce([token_map.has_slot for token_map in self._maps]).nonzero()[0]
        for step, token_map in enumerate(self._maps):
            token_map.add_nodes(expanded.compress(self._due(step, expanded) & ~token_map.has_slot.take(expanded)))

    def _add_nodes(self, step: int, work: ExpansionInput, nodes: Ints, number: int) -> None:
        """Make a row of the nodes that a step lacks, and of these if they are due there. Each of these is wanted from its lowest step.

        One that is drawn anew has its rows in the steps above that one, and they are right for good.
        """
        token_map = self._maps[step]
        lacked, (due, wanted) = len(token_map.uncomputed), self._computed(step, nodes)
        token_map.add_nodes(nodes.take(due))
        if not len(token_map.uncomputed):
            return
        work.wanted += (due.take(wanted) + number).tolist()
        if self._features is not None:
            source = token_map if self._recurrent else self._maps[step - 1]
            work.sources.append(source.parent_slots(token_map.uncomputed))
        work.rows.append(token_map.node_row((wanted + lacked).tolist()))

    def _computed(self, step: int, nodes: Ints) -> tuple[Ints, Ints]:
        """Tell which of these nodes are computed in this step, and of which of those it has the children: with a recurrent model all."""
        if self._recurrent:
            every = np.arange(len(nodes))
            return every, every
        wanted = self.positions(nodes) == self._root + step
        due = (self._due(step, nodes) & (wanted | ~self._maps[step].has_slot.take(nodes))).nonzero()[0]
        return due, wanted.take(due).nonzero()[0]

    def _due(self, step: int, nodes: Ints) -> Flags:
        """Tell which of these expanded nodes have a row in this step, of several."""
        positions = self.positions(nodes)
        return (positions >= self._maps[step].first) & (positions <= self._root + step)

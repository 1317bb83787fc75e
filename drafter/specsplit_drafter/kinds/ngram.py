"""The drafter with no model: what followed the last time the text read like this.

Works on text that repeats itself or its prompt (code, summaries, quotations). Probabilities come from counts by prediction with
partial matching (Cleary and Witten 1984): the longest matches speak first, what they leave goes to shorter ones, and a token that
a longer match has named is not named again by a shorter one. Of total + distinct / length shares, distinct / length are left: a
long match leaves little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsplit.tree import ROOT, TokenTree
from specsplit.values import DrafterInfo, DrafterKind, Sampling
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    AppliedCommit,
    Children,
    FrontierPart,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
)
from specsplit_drafter.kinds.suffix import Context, SuffixIndex


@dataclass
class _Session:
    index: SuffixIndex
    tree: TokenTree
    contexts: dict[int, Context] = field(default_factory=dict[int, Context])
    """By slot, of nodes since the last commit."""


class NgramProposer(ProposerDefaults):
    """Proposer of kind ngram."""

    def __init__(self, children: int, max_context: int = UNBOUNDED) -> None:
        self._children = children
        self.info = DrafterInfo(DrafterKind.NGRAM, "", None, max_context)
        """The info that verifiers get: it fits any vocabulary."""
        self._sessions: dict[SessionKey, _Session] = {}

    @property
    def pages(self) -> ProposerPages:
        """Zeros: it keeps no KV."""
        return ProposerPages(0, 0)

    @property
    def free_kv_slots(self) -> int:
        """A number without bound."""
        return UNBOUNDED

    def open(
        self,
        session: SessionKey,
        tree: TokenTree,
        tokens: Sequence[int],
        sampling: Sampling,
        prompt_tokens: int = 0,
        scope: bytes = b"",
    ) -> None:
        """Index the committed tokens."""
        self._sessions[session] = _Session(SuffixIndex(tokens), tree)

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Index the new tokens. Contexts are made again on demand: new text may be a new match."""
        state = self._sessions[session]
        state.index.extend(applied.tokens)
        state.contexts.clear()

    def pending(self, session: SessionKey) -> int:
        """Zero: tokens are indexed as they come."""
        return 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children | None]:
        """Propose children of each node; never None."""
        return [self._expand(self._sessions[part.session], part.slots.tolist()) for part in frontier]

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        del self._sessions[session]

    def _expand(self, state: _Session, slots: Sequence[int]) -> Children:
        return Children.of([rank(state.index, self._context(state, slot), self._children) for slot in slots])

    def _context(self, state: _Session, slot: int) -> Context:
        if slot == ROOT:
            return state.index.committed
        if slot not in state.contexts:
            above = self._context(state, int(state.tree.parents[slot]))
            state.contexts[slot] = state.index.child(above, state.tree.token_of(slot))
        return state.contexts[slot]


def rank(index: SuffixIndex, context: Context, children: int) -> list[tuple[int, float]]:
    """Find at most `children` continuations of a context with their log-probabilities, likeliest (then latest seen) first."""
    probabilities: dict[int, float] = {}
    counts: dict[int, int] = {}
    left = 1.0
    for length, positions in sorted(index.continuations(context).items(), reverse=True):
        for position in positions:
            token = index.token_at(position, context.path)
            if token not in probabilities:
                counts[token] = counts.get(token, 0) + 1
        if not counts:
            continue
        total, escape = sum(counts.values()), len(counts) / length
        for token, count in counts.items():
            probabilities[token] = left * count / (total + escape)
        left *= escape / (total + escape)
        counts.clear()
        if len(probabilities) >= children:
            break
    best = sorted(probabilities.items(), key=lambda item: item[1], reverse=True)[:children]
    return [(token, math.log(probability)) for token, probability in best]

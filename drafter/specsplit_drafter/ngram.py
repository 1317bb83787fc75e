"""The drafter with no model: what followed the last time the text read like this.

Works on text that repeats itself or its prompt (code, summaries, quotations). Probabilities come from counts by prediction with
partial matching (Cleary and Witten 1984): the longest matches speak first, what they leave goes to shorter ones, and a token that
a longer match has named is not named again by a shorter one. Of total + distinct / length shares, distinct / length are left: a
long match leaves little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specsplit.values import DrafterInfo, DrafterKind, Sampling
from specsplit_drafter.proposer import UNBOUNDED, Advance, Children, FrontierNode, NoFeatures, ProposerPages, SessionKey
from specsplit_drafter.suffix import Context, SuffixIndex


@dataclass
class _Session:
    index: SuffixIndex
    root: int
    contexts: dict[int, Context] = field(default_factory=dict[int, Context])
    """Of the nodes expanded since the last commit, the root's included."""
    tree: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Expanded node below the root -> its parent and token."""


class NgramProposer(NoFeatures):
    """Proposer of kind ngram."""

    def __init__(self, children: int, max_context: int = UNBOUNDED) -> None:
        self._children = children
        self._info = DrafterInfo(DrafterKind.NGRAM, "", None, max_context)
        self._sessions: dict[SessionKey, _Session] = {}

    @property
    def info(self) -> DrafterInfo:
        """Fits any vocabulary."""
        return self._info

    @property
    def pages(self) -> ProposerPages:
        """It keeps no KV."""
        return ProposerPages(0, 0)

    @property
    def room(self) -> int:
        """Without bound."""
        return UNBOUNDED

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """Index the committed tokens."""
        self._sessions[session] = _Session(SuffixIndex(tokens), 0)

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Index the new tokens. Contexts are made again on demand: new text may be a new match."""
        state = self._sessions[session]
        state.index.extend(advance.tokens)
        state.root = advance.root
        state.contexts.clear()
        state.tree = {node: link for node, link in state.tree.items() if node in advance.survivors}

    def pending(self, session: SessionKey) -> int:
        """None: they are indexed as they come."""
        return 0

    def expand(self, frontier: Sequence[FrontierNode]) -> list[Children | None]:
        """Candidate children of each node; never None."""
        return [self._expand(self._sessions[node.session], node) for node in frontier]

    def close(self, session: SessionKey) -> None:
        """Forget a session."""
        del self._sessions[session]

    def _expand(self, state: _Session, node: FrontierNode) -> Children:
        if node.node != state.root:
            state.tree[node.node] = (node.parent, node.token)
        return rank(state.index, self._context(state, node.node), self._children)

    def _context(self, state: _Session, node: int) -> Context:
        if node == state.root:
            return state.index.committed
        if node not in state.contexts:
            parent, token = state.tree[node]
            state.contexts[node] = state.index.child(self._context(state, parent), token)
        return state.contexts[node]


def rank(index: SuffixIndex, context: Context, children: int) -> Children:
    """At most `children` continuations of a context with their log-probabilities, likeliest (then latest seen) first."""
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
    tokens = np.array([token for token, _ in best], dtype=np.int64)
    return Children(tokens, np.log(np.array([probability for _, probability in best], dtype=np.float64)))

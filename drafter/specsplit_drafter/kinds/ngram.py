"""The drafter with no model: what followed where this text, or another of its client, read like this (SuffixDecoding, arXiv 2411.04975).

Works on text that repeats itself, its prompt or what the client was answered before: code, summaries, quotations, loops of tools. A lookup
takes some 0.1 ms, so the whole tree is drawn at once, after every commit, and the drafter rests until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.draft_events import Open
from specsplit.lookup import UNSHARED, SessionText, SharedTexts
from specsplit.tree import TokenTree
from specsplit.values import DrafterInfo, DrafterKind
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    AppliedCommit,
    Children,
    FrontierPart,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
    WholeTree,
)


class NgramProposer(ProposerDefaults):
    """Proposer of kind ngram."""

    max_depth = 1
    redraws = True

    def __init__(self, children: int, max_context: int = UNBOUNDED, shared: SharedTexts = UNSHARED) -> None:
        """`children`: candidates of a node at most. `shared`: what sessions know of one another's outputs."""
        self._children = children
        self._shared = shared
        self.info = DrafterInfo(DrafterKind.NGRAM, "", None, max_context)
        """The info that verifiers get: it fits any vocabulary."""
        self._sessions: dict[SessionKey, SessionText] = {}

    @property
    def pages(self) -> ProposerPages:
        """Zeros: it keeps no KV."""
        return ProposerPages(0, 0)

    @property
    def free_kv_slots(self) -> int:
        """A number without bound."""
        return UNBOUNDED

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        """Keep the committed tokens."""
        prompt_tokens = opened.prompt_tokens or len(opened.tokens)
        self._sessions[session] = SessionText(
            opened.tokens, prompt_tokens, self._shared, opened.scope, opened.vocabulary
        )

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Keep the new tokens."""
        self._sessions[session].append(applied.tokens)

    def pending(self, session: SessionKey) -> int:
        """Zero: there is nothing to read."""
        return 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[WholeTree]:
        """Draw the whole tree of each session; the parts of the frontier are roots."""
        return [self._draw(self._sessions[part.session], part.floor) for part in frontier]

    def close(self, session: SessionKey) -> None:
        """Forget a session. Its output is kept for others of its scope."""
        self._sessions.pop(session).close()

    def _draw(self, text: SessionText, floor: float) -> WholeTree:
        drawn = text.draw(self._children, floor)
        return WholeTree(drawn.above, drawn.tokens, Children.of(drawn.candidates))

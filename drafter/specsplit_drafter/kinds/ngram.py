"""The drafter with no model: what followed where this text, or another of its client, read like this (SuffixDecoding, arXiv 2411.04975).

Works on text that repeats itself, its prompt or what the client was answered before: code, summaries, quotations, loops of tools. A lookup
takes some 0.1 ms, so the whole tree is drawn at once, after every commit, and the drafter rests until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.draft_events import Open
from specsplit.tree import TokenTree
from specsplit.values import DrafterInfo, DrafterKind
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    AppliedCommit,
    FrontierPart,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
    WholeTree,
)
from specsplit_drafter.kinds.continuations import MATCHES, continuations, draw
from specsplit_drafter.kinds.shared_texts import UNSHARED, SharedTexts, Whose
from specsplit_drafter.kinds.suffix import Text


@dataclass(frozen=True)
class _Session:
    text: Text
    output_from: int
    """Tokens of the prompt."""
    whose: Whose | None

    @property
    def output(self) -> list[int]:
        return self.text.tokens[self.output_from :].tolist()


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
        self._sessions: dict[SessionKey, _Session] = {}

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
        whose = self._shared.whose(opened.scope, opened.vocabulary)
        self._sessions[session] = _Session(Text(opened.tokens), opened.prompt_tokens or len(opened.tokens), whose)

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Keep the new tokens."""
        self._sessions[session].text.append(applied.tokens)

    def pending(self, session: SessionKey) -> int:
        """Zero: there is nothing to read."""
        return 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[WholeTree]:
        """Draw the whole tree of each session; the parts of the frontier are roots."""
        return [self._draw(self._sessions[part.session], part.floor) for part in frontier]

    def close(self, session: SessionKey) -> None:
        """Forget a session. Its output is kept for others of its scope."""
        over = self._sessions.pop(session)
        self._shared.add(over.whose, over.output)

    def _draw(self, session: _Session, floor: float) -> WholeTree:
        ending = session.text.ending
        texts = [text for text in (session.text, self._shared.of(session.whose)) if len(text)]
        found = [each for text in texts for each in continuations(text, text.matches(ending, MATCHES))]
        return draw(found, self._children, floor)

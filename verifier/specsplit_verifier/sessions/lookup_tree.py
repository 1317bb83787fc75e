"""What followed where the text of a session has been before (`specsplit.lookup`), as drafts of the verifier itself.

A tree is drawn on the engine's thread, once behind every commit, when a step is chosen that may have use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specsplit.lookup import NO_TOKEN, DrawnTree, SessionText, SharedTexts
from specsplit.speculation import Draft
from specsplit.values import Vocabulary
from specsplit_verifier.sessions.drafter_record import DrafterRecord, Entry
from specsplit_verifier.sessions.legal import legal, looked_at
from specsplit_verifier.sessions.tree_limits import TreeLimits

SHARED_TOKENS: Final = 65_536
"""Tokens of recent outputs that are kept for each client, at most."""
CLIENTS: Final = 256
"""Clients whose outputs are kept at once; those that were not used for longest are forgotten."""


class LookupTexts:
    """What the lookups of a verifier have in common."""

    def __init__(self, vocabulary: Vocabulary, *, texts: bool = True) -> None:
        """`texts`: whether texts are looked up in; else nothing is found."""
        self.texts: Final = texts
        self.floor = 0.0
        """Survival below which the latest step had no use for a node; 0: it took what it could get."""
        self._vocabulary = vocabulary
        self._shared = SharedTexts(SHARED_TOKENS, CLIENTS)

    def text(self, tokens: Sequence[int], prompt_tokens: int, scope: bytes) -> SessionText:
        """Begin to follow a text, in the scope of its client."""
        return SessionText(tokens, prompt_tokens, self._shared, scope, self._vocabulary)

    def keep(self, output: Sequence[int], scope: bytes) -> None:
        """Keep the output of a session that is over for others of its client."""
        self._shared.add(self._shared.whose(scope, self._vocabulary), output)


class LookupTree:
    """What followed where the text of one session has been before."""

    def __init__(self, lookup: LookupTexts, text: SessionText, record: DrafterRecord, *, movable: bool = False) -> None:
        """`record`: what lookup brings, in whatever session."""
        self._lookup = lookup
        self._text = text
        self._entry = Entry(record, movable)
        self._drawn: tuple[TreeLimits, Draft] | None = None
        """The whole tree, best first, and for what it was drawn; None: it has not been since the last commit."""
        self._last_id = 0
        self._entry.begin()

    @property
    def whole(self) -> Draft | None:
        """The whole tree, best first; None: it has not been drawn since the last commit."""
        return None if self._drawn is None else self._drawn[1]

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        return 0 if self._drawn is None else len(self._drawn[1].tokens) - 1

    def best(self, limits: TreeLimits) -> Draft:
        """The best of the tree within these limits, root first. It is drawn if it was not for those or wider ones."""
        root, position = self._text.last, len(self._text) - 1
        if min(limits.num_steps, limits.num_draft_tokens - 1) < 1:
            return Draft.root_alone(root, position)
        if self._drawn is None or not limits.narrows(self._drawn[0]):
            nodes = looked_at(limits).num_draft_tokens - 1
            self._drawn = limits, Draft.root_alone(root, position)
            if self._lookup.texts:
                drawn = self._text.draw(limits.topk, self._lookup.floor, depth=limits.num_steps, nodes=nodes)
                draft = _draft_of(drawn, root, position, nodes, self._last_id + 1)
                self._last_id += len(draft.ids) - 1
                self._drawn = limits, legal(draft, limits)
        return self._drawn[1].first(limits.num_draft_tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Take in what was committed in a step that nothing was looked up for."""
        self._text.append(tokens)
        self._drawn = None

    def commit(self, tokens: Sequence[int], accepted: int, *, hit: bool) -> None:
        """Take in what was committed, of which so many tokens were nodes of the tree; it is drawn anew when there is use for one."""
        self.read(tokens)
        self._entry.record.step(accepted, hit=hit)

    def close(self) -> None:
        """Count the session no more."""
        self._entry.end()


def _draft_of(drawn: DrawnTree, root: int, position: int, nodes: int, first_id: int) -> Draft:
    """Make a draft of the likeliest nodes of a tree. No node is likelier than its parent, behind which it stands."""
    slots = {(-1, NO_TOKEN): 0}
    parents, tokens, positions, log_survivals = [-1], [root], [position], [0.0]
    for row, (above, token, candidates) in enumerate(zip(*drawn, strict=True)):
        up = slots[above, token]
        for candidate, edge in candidates:
            slots[row, candidate] = len(tokens)
            parents.append(up)
            tokens.append(candidate)
            positions.append(positions[up] + 1)
            log_survivals.append(log_survivals[up] + edge)
    draft = Draft(range(len(tokens)), tokens, parents, positions, log_survivals).likeliest(1 + nodes)
    return replace(draft, ids=[0, *range(first_id, first_id + len(draft.ids) - 1)])

"""A session that the verifier drafts for itself, by lookup (`specsplit.lookup`) and by what its grammar forces.

There is no process, no message and no wait.

The tree is drawn on the engine's thread, once behind every commit, when a step is chosen that may have use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from specsplit.draft_events import ToDrafter
from specsplit.lookup import NO_TOKEN, DrawnTree, SessionText, SharedTexts
from specsplit.speculation import Draft
from specsplit.values import Miss, Vocabulary
from specsplit_verifier.records.feed import Feed
from specsplit_verifier.records.step import Accepted, Reroot, TreeView
from specsplit_verifier.sessions.draft_session import NoDrafter
from specsplit_verifier.sessions.drafter_record import DrafterRecord
from specsplit_verifier.sessions.forced import forced_first, with_forced
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits

LOOKUP: Final = "lookup"
"""Stands for the address of a drafter where it is remembered what drafts brought."""


SHARED_TOKENS: Final = 65_536
"""Tokens of recent outputs that are kept for each client, at most."""
CLIENTS: Final = 256
"""Clients whose outputs are kept at once; those that were not used for longest are forgotten."""


class Lookup:
    """What the lookups of a verifier have in common."""

    def __init__(self, vocabulary: Vocabulary, *, texts: bool = True) -> None:
        """`texts`: whether texts are looked up in; else all that is drafted is what a grammar forces."""
        self.texts: Final = texts
        self.floor = 0.0
        """Survival below which the latest step had no use for a node; 0: it took what it could get."""
        self._vocabulary = vocabulary
        self._shared = SharedTexts(SHARED_TOKENS, CLIENTS)

    def begin(self, session: Session, record: DrafterRecord) -> OwnLookup:
        """Draft for a session that no drafter serves, from its present root on. `record`: what lookup brings to such sessions."""
        scope, drafter = session.request.scope, session.drafter
        text = SessionText(session.tokens, session.prompt_length, self._shared, scope, self._vocabulary)
        movable = session.request.any_drafter
        return OwnLookup(self, text, record, needed=drafter.needed, feed=drafter.feed, movable=movable)

    def drafts_for(self, session: Session) -> bool:
        """Tell whether there may be something to draft for a session."""
        return self.texts or session.grammar is not None

    def ended(self, session: Session) -> None:
        """Keep the output of a session that is over for others of its client."""
        if not self.texts:
            return
        whose = self._shared.whose(session.request.scope, self._vocabulary)
        self._shared.add(whose, session.tokens[session.prompt_length :])


class OwnLookup(NoDrafter):
    """What followed where the text of a session has been before: its drafts while no drafter serves it."""

    attached: ClassVar[bool] = True
    address: ClassVar[str] = LOOKUP

    def __init__(
        self,
        lookup: Lookup,
        text: SessionText,
        record: DrafterRecord,
        *,
        needed: bool = False,
        feed: Feed | None = None,
        movable: bool = False,
    ) -> None:
        """`record`: what lookup brings, in whatever session. `needed` and `feed`: as `NoDrafter` has them."""
        super().__init__(needed=needed, feed=feed)
        self._lookup = lookup
        self._text = text
        self._record = record
        self._movable = movable
        self._drawn: tuple[TreeLimits, Draft] | None = None
        """The whole tree, best first, and for what it was drawn; None: it has not been since the last commit."""
        self._last_id = 0
        record.begin(movable=movable)

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        return 0 if self._drawn is None else len(self._drawn[1].tokens) - 1

    def log_survivals(self, limits: TreeLimits) -> Sequence[float]:
        """Log-survivals of the nodes that a step would take now, best first."""
        return self._best(limits).log_survivals[1:]

    def take(self, root: int, position: int, limits: TreeLimits) -> Draft:
        """What the session brings to a step: the best of the tree, root first."""
        return self._best(limits)

    def commit(self, draft: Draft, accepted: Accepted, now: float) -> Reroot:
        """Take in what was committed; the tree is drawn anew when there is use for one."""
        self._text.append(accepted.commits(draft))
        drawn, self._drawn = self._drawn, None
        # Where something is forced, what was drawn beside it is dropped.
        whole = draft if drawn is None or drawn[1].ids[: len(draft.ids)] != draft.ids else drawn[1]
        below = [token for token, up in zip(whole.tokens, whole.parents, strict=True) if up == accepted.path[-1]]
        hit = accepted.bonus in below
        self._record.step(len(accepted.path) - 1, hit=hit)
        cause = Miss.WRONG if below else Miss.NONE
        cut = len(whole.tokens) - len(draft.tokens) - hit
        return Reroot((), hit, None if hit else cause, max(0, cut), rested=True)

    def view(self, draft: Draft) -> TreeView:
        """The whole tree."""
        return with_forced(super().view(draft if self._drawn is None else self._drawn[1]), draft)

    def close(self) -> Sequence[ToDrafter]:
        """Count the session no more."""
        self._record.end(movable=self._movable)
        return ()

    def _best(self, limits: TreeLimits) -> Draft:
        """The best of the tree within these limits, for which it is drawn if it was not for those or wider ones."""
        root, position = self._text.last, len(self._text) - 1
        if min(limits.num_steps, limits.num_draft_tokens - 1) < 1:
            return Draft.root_alone(root, position)
        if self._drawn is None or not limits.narrows(self._drawn[0]):
            nodes = limits.num_draft_tokens - 1
            self._drawn = limits, Draft.root_alone(root, position)
            if self._lookup.texts:
                drawn = self._text.draw(limits.topk, self._lookup.floor, depth=limits.num_steps, nodes=nodes)
                self._drawn = limits, _draft_of(drawn, root, position, nodes, self._last_id + 1)
            self._last_id += self.nodes
        return forced_first(self._drawn[1].first(limits.num_draft_tokens), limits)


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
    order = sorted(range(len(tokens)), key=log_survivals.__getitem__, reverse=True)[: 1 + nodes]
    places = {-1: -1} | {slot: place for place, slot in enumerate(order)}
    return Draft(
        [0, *range(first_id, first_id + len(order) - 1)],
        [tokens[slot] for slot in order],
        [places[parents[slot]] for slot in order],
        [positions[slot] for slot in order],
        [log_survivals[slot] for slot in order],
    )

"""Drafts by the verifier itself: by lookup (`lookup_tree`), and by what a grammar forces, of sessions that no drafter serves or beside one.

There is no process, no message and no wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from specsplit.clock import Clock, SystemClock
from specsplit.draft_events import ToDrafter
from specsplit.speculation import Draft
from specsplit.values import Miss, Vocabulary
from specsplit_verifier.records.feed import Feed
from specsplit_verifier.records.step import Accepted, Reroot, TreeView
from specsplit_verifier.sessions.drafter_record import DrafterRecord
from specsplit_verifier.sessions.forced import with_unknown
from specsplit_verifier.sessions.lookup_beside import LookupBeside, Together
from specsplit_verifier.sessions.lookup_standing import LookupPrice
from specsplit_verifier.sessions.lookup_tree import LookupTexts, LookupTree
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.outlined import grammar_first
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits

LOOKUP: Final = "lookup"
"""Stands for the address of a drafter where it is remembered what drafts brought."""
REMEMBERED: Final = 64
"""Pairs of a drafter and a kind of text (greedy, sampled) of which it is kept what drafter and lookup are worth together."""


class Lookup(LookupTexts):
    """Whom a verifier looks up for."""

    def __init__(
        self, vocabulary: Vocabulary, *, texts: bool = True, beside: bool = False, clock: Clock | None = None
    ) -> None:
        """`texts`: whether texts are looked up in; else all that is drafted is what a grammar forces.

        `beside`: whether that is done for sessions that a drafter serves, too. `clock`: measures what that takes; None: the machine's.
        """
        super().__init__(vocabulary, texts=texts)
        self._beside = beside
        self.price: Final = LookupPrice(clock or SystemClock())
        self._together: dict[tuple[str, bool], Together] = {}

    def begin(self, session: Session, record: DrafterRecord) -> OwnLookup:
        """Draft for a session that no drafter serves, from its present root on. `record`: what lookup brings to such sessions."""
        drafter = session.drafter
        return OwnLookup(self._tree(session, record), needed=drafter.needed, feed=drafter.feed)

    def beside(self, session: Session, address: str, record: DrafterRecord) -> LookupBeside:
        """Draft for a session beside the drafter at `address`, from its present root on. `record`: what lookup brings."""
        return LookupBeside(self._tree(session, record), self._both(address, session.sampled), self.price)

    def _tree(self, session: Session, record: DrafterRecord) -> LookupTree:
        text = self.text(session.tokens, session.prompt_length, session.request.scope)
        return LookupTree(self, text, record, movable=session.request.any_drafter)

    def _both(self, address: str, sampled: bool) -> Together:
        key = address, sampled
        if key not in self._together and len(self._together) >= REMEMBERED:
            del self._together[next(iter(self._together))]
        return self._together.setdefault(key, Together())

    @property
    def drafts_beside(self) -> bool:
        """True if sessions that a drafter serves are looked up for."""
        return self.texts and self._beside

    def drafts_for(self, session: Session) -> bool:
        """Tell whether there may be something to draft for a session."""
        return self.texts or session.grammar is not None

    def ended(self, session: Session) -> None:
        """Keep the output of a session that is over for others of its client."""
        if self.texts:
            self.keep(session.tokens[session.prompt_length :], session.request.scope)


class OwnLookup(NoDrafter):
    """Drafts of a session that no drafter serves, by lookup."""

    attached: ClassVar[bool] = True
    address: ClassVar[str] = LOOKUP

    def __init__(self, tree: LookupTree, *, needed: bool = False, feed: Feed | None = None) -> None:
        """`needed` and `feed`: as `NoDrafter` has them."""
        super().__init__(needed=needed, feed=feed)
        self._tree = tree

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        return self._tree.nodes

    def log_survivals(self, limits: TreeLimits) -> Sequence[float]:
        """Log-survivals of the nodes that a step would take now, best first."""
        return grammar_first(self._tree.best(limits), limits).log_survivals[1:]

    def take(self, root: int, position: int, limits: TreeLimits) -> Draft:
        """What the session brings to a step: the best of the tree, root first."""
        return grammar_first(self._tree.best(limits), limits)

    def commit(self, draft: Draft, accepted: Accepted, now: float) -> Reroot:
        """Take in what was committed."""
        drawn = self._tree.whole
        # Where something is forced, what was drawn beside it is dropped.
        whole = draft if drawn is None or drawn.ids[: len(draft.ids)] != draft.ids else drawn
        below = [token for token, up in zip(whole.tokens, whole.parents, strict=True) if up == accepted.path[-1]]
        hit = accepted.bonus in below
        self._tree.commit(accepted.commits(draft), len(accepted.path) - 1, hit=hit)
        cause = Miss.WRONG if below else Miss.NONE
        cut = len(whole.tokens) - len(draft.tokens) - hit
        return Reroot((), hit, None if hit else cause, max(0, cut), rested=True)

    def view(self, draft: Draft) -> TreeView:
        """The whole tree."""
        return with_unknown(super().view(self._tree.whole or draft), draft)

    def close(self) -> Sequence[ToDrafter]:
        """Count the session no more."""
        self._tree.close()
        return ()

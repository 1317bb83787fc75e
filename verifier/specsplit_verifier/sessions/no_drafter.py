"""What stands in the place of a drafter for a session that none serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from specsplit.draft_events import ToDrafter
from specsplit.features import Features
from specsplit.speculation import Commit, Draft
from specsplit.values import Plan
from specsplit_verifier.records.feed import Feed, Recipe
from specsplit_verifier.records.step import Accepted, Reroot, TreeView
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import Prospect


class NoDrafter:
    """No drafter serves the session: a step takes the root alone, and nothing is waited for."""

    served: ClassVar = False
    attached: ClassVar[bool] = False
    address: ClassVar[str] = ""
    drafter_ready: ClassVar = True
    looked_up: ClassVar = False
    grows_queued: ClassVar = False
    held_since: ClassVar = None
    recompute: ClassVar = range(0)
    lacks_features: ClassVar = False
    seen: ClassVar = 0

    def __init__(self, *, needed: bool = False, feed: Feed | None = None) -> None:
        self.needed = needed
        """True if the session may get a drafter: none was there for it, its own was lost, or its plan did not speculate."""
        self.feed = feed
        """What is kept of the features of its last drafter, for the next one."""

    @property
    def nodes(self) -> int:
        """Nodes that were drafted since the last commit."""
        return 0

    @property
    def recipe(self) -> Recipe | None:
        """How features of the session's tokens are made; None: none are wanted."""
        return None if self.feed is None else self.feed.recipe

    def at(self, address: str) -> None:
        """Return None: it is no drafter."""

    def log_survivals(self, limits: TreeLimits) -> Sequence[float]:
        """Return nothing: there are no nodes."""
        return ()

    def take(self, root: int, position: int, limits: TreeLimits) -> Draft:
        """What the session brings to a step: its root."""
        return Draft.root_alone(root, position)

    def meet(self, *, repeating: bool) -> None:
        """Do nothing: only beside a drafter lookup may rest."""

    def commit(self, draft: Draft, accepted: Accepted, now: float) -> Reroot:
        """Return an empty reroot: there is no speculation to take to the next root."""
        return Reroot()

    def view(self, draft: Draft) -> TreeView:
        """All there is; of a drafter that was lost while the step was in flight, what was taken."""
        grown = draft.ordered(sorted(range(len(draft.ids)), key=draft.ids.__getitem__))  # a draft stands best first
        return TreeView(grown.ids, grown.parents, grown.tokens, grown.edges)

    def pause(self, now: float, plan: Plan, limits: TreeLimits) -> float:
        """Return 0: there is no drafter to wait for."""
        return 0.0

    def prospect(self, now: float, plan: Plan, limits: TreeLimits) -> Prospect | None:
        """Return None: there is no drafter that could bring anything."""
        return None

    def replan(self, plan: Plan, now: float) -> Sequence[ToDrafter]:
        """Return nothing: there is nobody to tell."""
        return ()

    def keep_back(self, commit: Commit, *, rested: bool) -> bool:
        """Return False: there is no drafter to keep a commit back from."""
        return False

    def kept_back(self) -> Sequence[ToDrafter]:
        """Return nothing: nothing was kept back."""
        return ()

    def hold(self, now: float) -> None:
        """Do nothing: there is no drafter to wait for."""

    def stepping(self, now: float) -> None:
        """Do nothing: there is no drafter to wait for."""

    def apply_grows(self, limits: TreeLimits, *, prefilling: bool) -> None:
        """Do nothing: nobody grows."""

    def close(self) -> Sequence[ToDrafter]:
        """Return nothing: nobody holds anything for the session."""
        return ()

    def computed(self, features: Features, now: float, *, prefilling: bool) -> Sequence[Features]:
        """Features were computed, and the next drafter may want them: nobody is sent them now."""
        if self.feed is not None:
            self.feed.add(features)
        return ()

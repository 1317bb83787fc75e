"""On what terms a verifier has drafters draft: what each of them is told with the open, and the features that it may read."""

from __future__ import annotations

from typing import Final

from specsplit.draft_events import Open
from specsplit.errors import Incompatible
from specsplit.features import FeatureLayout, FeatureNeed
from specsplit.speculation import Mirror
from specsplit.values import Host, Vocabulary
from specsplit_verifier.records.feed import FeatureSource, Feed, Recipe
from specsplit_verifier.sessions.session import Session


class Terms:
    """What holds for all drafters and sessions of one verifier."""

    def __init__(self, vocabulary: Vocabulary, max_nodes: int, features: FeatureSource | None, host: Host) -> None:
        """`features`: None: this verifier makes none. `host`: where it computes."""
        self._vocabulary: Final = vocabulary
        self._max_nodes: Final = max_nodes
        self._features: Final = features
        self._host: Final = host

    def recipe(self, need: FeatureNeed) -> Recipe | None:
        """Make the recipe of the features that a drafter needs; None if it needs none. Raises Incompatible if they cannot be made here."""
        if not need:
            return None
        if self._features is None:
            raise Incompatible(f"it needs features ({need}), and this verifier makes none")
        return self._features.recipe(need)

    def feed(self, session: Session, need: FeatureNeed) -> Feed | None:
        """What a drafter reads of a session; None if it reads nothing. Raises Incompatible as `recipe` does."""
        recipe = self.recipe(need)
        if recipe is None or self._features is None:
            return None
        return self._features.feed(session.id, recipe, session.drafter.feed, session.kv_length)

    def mirror(self, session: Session) -> Mirror:
        """An empty one, below the present root of a session."""
        root = len(session.tokens) - 1
        return Mirror(session.id, session.tokens[root], root, self._max_nodes, self._vocabulary.size)

    def opening(self, session: Session, feed: Feed | None, step_us: int) -> Open:
        """What a drafter is told of a session first. `step_us`: expected microseconds from one step to the next; 0: unknown."""
        request = session.request
        return Open(
            tuple(session.tokens),
            request.sampling,
            session.plan,
            self._vocabulary,
            self._max_nodes,
            request.traceparent,
            FeatureLayout() if feed is None else feed.recipe.layout,
            session.prompt_length,
            step_us,
            request.scope,
            self._host,
            request.constraint,
            self._ends(session),
        )

    def _ends(self, session: Session) -> tuple[int, ...]:
        """List the tokens that a drafter may draw where the constraint of a session lets its output end."""
        if session.request.constraint is None:
            return ()
        return tuple(token for token in sorted(session.stops.token_ids) if token < self._vocabulary.size)

"""What proposers with a model have in common: the life of their sessions, and of what ranks the children of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from specsplit.draft_events import Open
from specsplit.features import FeatureLayout, Features
from specsplit.tree import TokenTree
from specsplit_drafter.descent.ranking import Ranking
from specsplit_drafter.drafts.grammars import DraftGrammars
from specsplit_drafter.drafts.proposer import AppliedCommit, SessionKey

CONTEXT_BUDGET: Final = 512
"""Pending tokens in one expansion at most, all sessions together."""


class OpenSession(Protocol):
    """One session as its proposer holds it."""

    @property
    def pending(self) -> int:
        """Count the committed tokens that are to be read before its root can be expanded."""
        ...

    @property
    def stalled(self) -> bool:
        """Tell whether the root waits for features, and all that have come are read."""
        ...

    def commit(self, applied: AppliedCommit) -> None:
        """Take and free slots for what a commit brought. Raises OutOfPages."""
        ...

    def feed(self, features: Features, layout: FeatureLayout) -> None:
        """Take in what FeatureBuffer.add takes."""
        ...

    def release(self) -> None:
        """Free every slot."""
        ...


S = TypeVar("S", bound=OpenSession)


class SessionProposer(Generic[S]):
    """The part of a Proposer that is about single sessions; expansions are its subclass's."""

    def __init__(
        self,
        ranking: Ranking,
        begin: Callable[[TokenTree, Sequence[int]], S],
        grammars: DraftGrammars | None = None,
    ) -> None:
        """`begin` takes slots for a session with this tree and these committed tokens. Raises OutOfPages, and holds none then.

        `grammars`: what sessions are held to; None: to nothing.
        """
        self._ranking: Final = ranking
        self._grammars: Final = grammars or DraftGrammars()
        self._begin: Final = begin
        self._sessions: Final[dict[SessionKey, S]] = {}
        self._read: dict[SessionKey, int] = {}

    def prepare(self) -> bool:
        """Tell that there is nothing to prepare."""
        return False

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        """Take slots for the committed tokens, which are read later. Raises OutOfPages."""
        self._ranking.open(session, opened.tokens, opened.sampling, opened.prompt_tokens)
        try:
            self._sessions[session] = self._begin(tree, opened.tokens)
        except BaseException:
            self._ranking.close(session)
            raise
        self._grammars.open(session, opened)

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Take and free slots for what a commit brought. Raises OutOfPages."""
        self._ranking.commit(session, applied.tokens)
        self._grammars.commit(session, applied.tokens)
        self._sessions[session].commit(applied)

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Take in what FeatureBuffer.add takes, if the model reads features."""
        self._sessions[session].feed(features, layout)

    def _by_path(self, session: SessionKey) -> bool:
        """Tell whether the ranking behind a node depends on the path to it."""
        return self._ranking.penalises(session) or self._grammars.holds(session)

    def stalled(self, session: SessionKey) -> bool:
        """Tell whether the root waits for features, and all that have come are read."""
        return self._sessions[session].stalled

    def pending(self, session: SessionKey) -> int:
        """Count the committed tokens that are to be read before the root of a session can be expanded."""
        return self._sessions[session].pending

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Tell which sessions had features read since the last call, and how far."""
        read, self._read = self._read, {}
        return tuple(read.items())

    def close(self, session: SessionKey) -> None:
        """Free every slot."""
        self._sessions.pop(session).release()
        self._ranking.close(session)
        self._grammars.close(session)
        self._read.pop(session, None)

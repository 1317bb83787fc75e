"""The commit rounds of those sessions that are traced, kept on the engine's thread without looking at a clock.

A round begins with the open or a commit and ends with the next commit, or with the session. Whether it is traced is decided when it begins,
and holds to its end, so that a level that is raised shows from the next commits on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from specsplit.observe import TraceContext
from specsplit.speculation import Grow
from specsplit_drafter.drafts.proposer import SessionKey
from specsplit_drafter.drafts.record import CommitRound, ExpansionShare

Follows: TypeAlias = Callable[[int, TraceContext | None], bool]
"""Given a level and the parent of a session's spans: whether the session is traced at that level now. `Tracing.follows` is one."""
Pending: TypeAlias = Callable[[SessionKey], int]
"""Given a session: its committed tokens that are not read yet."""

_ROUNDS = 2
_SHARES = 3
"""Trace levels from which on rounds, and shares, have spans."""


class Rounds:
    """Records commit rounds and expansion shares of traced sessions, and nothing of others. Not thread-safe."""

    def __init__(self, follows: Follows | None = None) -> None:
        """Without `follows` no session is ever traced."""
        self._follows = follows
        self._parents: dict[SessionKey, TraceContext] = {}
        """Parents of the spans of every open session whose verifier traces it, at whatever level."""
        self._running: dict[SessionKey, CommitRound] = {}
        self._begun: list[CommitRound] = []
        self._ended: list[CommitRound] = []
        """Rounds that ended since the last `stamp`; `_begun` has those that began."""
        self._stamped: list[CommitRound] = []
        self._shares: dict[SessionKey, ExpansionShare] = {}
        """Shares in the expansion that is going on, or in the last one until they are taken."""

    def opened(self, session: SessionKey, traceparent: str) -> None:
        """Begin the first round of a session that was opened."""
        parent = TraceContext.parse(traceparent) if self._follows is not None else None
        if parent is not None and parent.sampled:
            self._parents[session] = parent
            self._begin(session, commits=0)

    def committed(self, session: SessionKey, commits: int) -> None:
        """End a round and begin the next: a commit was applied, the `commits`-th."""
        if session in self._parents:
            self._end(session, None)
            self._begin(session, commits)

    def closed(self, session: SessionKey, error: str | None) -> None:
        """End the last round of a session. `error`: what ended the session; None: its verifier closed it."""
        if self._parents.pop(session, None) is not None:
            self._end(session, error)

    def close_all(self, error: str) -> None:
        """Close every session that is traced."""
        for session in list(self._parents):
            self.closed(session, error)

    def expanding(self, sessions: Iterable[SessionKey], pending: Pending) -> None:
        """Begin an expansion of nodes of these sessions."""
        parents = ((session, self._running[session].parent) for session in sessions if session in self._running)
        self._shares = {
            session: ExpansionShare(session, parent, pending(session))
            for session, parent in parents
            if self._is_traced(_SHARES, parent)
        }

    def expanded(self, session: SessionKey, num_nodes: int) -> None:
        """Count nodes of a session that were expanded."""
        if session in self._running:
            self._running[session].expanded += num_nodes
        if session in self._shares:
            self._shares[session].nodes += num_nodes

    def read(self, pending: Pending) -> None:
        """Count the tokens that the sessions have read in the expansion that is over."""
        for session, share in self._shares.items():
            share.tokens = share.pending - pending(session)

    def sent(self, session: SessionKey, grow: Grow) -> None:
        """Count a grow that leaves for a session's verifier."""
        if session in self._running:
            self._running[session].grown += len(grow.ids)
            self._running[session].rested = grow.resting
        if session in self._shares:
            self._shares[session].grown += len(grow.ids)

    def stamp(self, now: float) -> None:
        """Set the times of rounds that began or ended since the last call to `now`."""
        for round_ in self._begun:
            round_.began = now
        for round_ in self._ended:
            round_.ended = now
        self._stamped += self._ended
        self._begun, self._ended = [], []

    def take_ended(self) -> tuple[CommitRound, ...]:
        """Take the rounds that had ended at the last `stamp`, each once."""
        ended, self._stamped = self._stamped, []
        return tuple(ended)

    def take_shares(self) -> tuple[ExpansionShare, ...]:
        """Take the shares of the last expansion, each once."""
        shares, self._shares = self._shares, {}
        return tuple(share for share in shares.values() if share.tokens or share.nodes)

    def _is_traced(self, level: int, parent: TraceContext) -> bool:
        return self._follows is not None and self._follows(level, parent)

    def _begin(self, session: SessionKey, commits: int) -> None:
        parent = self._parents[session]
        if self._is_traced(_ROUNDS, parent):
            round_ = self._running[session] = CommitRound(session, parent, commits)
            self._begun.append(round_)

    def _end(self, session: SessionKey, error: str | None) -> None:
        round_ = self._running.pop(session, None)
        if round_ is not None:
            round_.error = error
            self._ended.append(round_)

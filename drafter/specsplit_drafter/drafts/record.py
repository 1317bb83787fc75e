"""Records of the engine thread's work, for metrics and spans. Times are seconds of the engine's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specsplit.observe import TraceContext
from specsplit.records import TurnCosts
from specsplit_drafter.drafts.proposer import FrontierPart, SessionKey


@dataclass(slots=True)
class ExpansionShare:
    """One traced session's part in an expansion. It does not change once it is delivered."""

    session: SessionKey
    parent: TraceContext
    """The verifier's span that this is a child of."""
    pending: int
    """Committed tokens that were not read before it."""
    tokens: int = 0
    """Committed tokens that were read in it: draft extend."""
    nodes: int = 0
    """Nodes expanded, the root included; 0 if its context is not read to the end."""
    grown: int = 0
    """Nodes sent to the verifier with it."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """One expansion of all sessions together."""

    began: float
    ended: float
    frontier: Sequence[FrontierPart]
    """Nodes that were to be expanded, by session."""
    shares: tuple[ExpansionShare, ...]
    """Shares of the sessions that are traced at that level, as far as anything was read or expanded."""

    @property
    def num_sessions(self) -> int:
        """Sessions that took part, traced or not."""
        return len(self.frontier)

    @property
    def num_nodes(self) -> int:
        """Nodes of all of them, roots included."""
        return sum(len(part.slots) for part in self.frontier)


@dataclass(slots=True)
class CommitRound:
    """A commit round of one traced session: from its open, or a commit, to the next commit or its end. It is delivered once it is over."""

    session: SessionKey
    parent: TraceContext
    """The verifier's span that this is a child of."""
    commits: int
    """Commits applied when the round began."""
    began: float = 0.0
    ended: float = 0.0
    expanded: int = 0
    """Nodes expanded, the root included."""
    grown: int = 0
    """Nodes sent to the verifier."""
    rested: bool = False
    """True if the last grow said that nothing more will come."""
    error: str | None = None
    """The error that ended the session; None if its verifier closed it, or it goes on."""


@dataclass(frozen=True, slots=True)
class RankTurn:
    """A turn of a rank group in which some rank had something to expand."""

    costs: TurnCosts
    idle: bool
    """True if this one had nothing."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle of the engine that has anything to record. The rounds ended before the expansion began."""

    expansion: Expansion | None
    rounds: tuple[CommitRound, ...]
    turns: tuple[RankTurn, ...] = ()
    """Turns of the drafter's rank group that had a forward."""

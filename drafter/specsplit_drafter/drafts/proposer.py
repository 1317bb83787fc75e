"""The interface of every kind of drafter.

A proposer knows tokens, not scores: `growth` decides which node is worth expanding and which child is worth sending. It sees a
session as a committed sequence whose last token is the root, and the session's tree below it, to which it may attach columns. A node is
expanded in a later expansion than its parent, and at most once, or with a kind that redraws at most once after every commit. A root stands
in a frontier alone, or with a kind that shares it, with nodes whose parents are not the root.

A kind for which a whole tree costs next to nothing draws that in the place of children, whenever a root is expanded: its nodes are expanded
by it already. It redraws, and gives 1 as its `max_depth`, since nothing but the root is ever asked for.

A kind may *descend*: expand the best children of a frontier in the same expansion, and theirs, several levels deep. It scores them by a
`Scoring`, and returns all levels. `growth` decides which of these become nodes, and names them with `assign_levels`.

A kind that drafts with a head also reads *features* of the committed tokens. They come when the verifier has them, so a session may
be stalled: nothing can be done for it before more arrive. Every other kind inherits `ProposerDefaults`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np

from specsplit.draft_events import Open
from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.features import FeatureLayout, Features
from specsplit.records import GraphStatistics
from specsplit.tree import ROOT, Ints, Scores, TokenTree
from specsplit.values import DrafterInfo

if TYPE_CHECKING:  # it takes torch, which not every kind needs
    from specsplit_drafter.drafts.draft_weights import DraftWeights
    from specsplit_drafter.drafts.group_forwards import GroupForwards

UNBOUNDED: Final = 1 << 30
LEAST_LEVEL_WIDTH: Final = 16
"""Nodes of every further level of an expansion, if there is room for as many."""
SessionKey: TypeAlias = tuple[int, int]
"""(number of the stream on this drafter, session id on that stream): verifiers choose session ids without knowing of one another."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How growth scores what hangs below the nodes of a frontier, for a proposer that descends."""

    scores: Scores
    """[n] log-survivals of the nodes."""
    distances: Ints
    """[n] distances by which the nodes are calibrated; a child's is one more."""
    shifts: Scores
    """[D, R, 24] calibration by distance and rank; the last distance is of all that are farther, too (calibration.py)."""
    floor: float
    """Log-survival below which a child is not worth expanding."""
    deepest: int
    """Position from which on nothing may be expanded."""
    width: int
    """Nodes of every level below, at most."""


@dataclass(frozen=True, slots=True)
class FrontierPart:
    """Nodes of one session that are to be expanded now: the root, first and as a rule alone, or nodes below it."""

    session: SessionKey
    slots: Ints
    """[n] in the session's tree."""
    scoring: Scoring | None = None
    """None: nothing is to be expanded below them in the same expansion."""
    floor: float = 0.0
    """Survival below which the verifier's next step has no use for a node: who draws a whole tree need not look behind it."""


@dataclass(frozen=True, slots=True)
class Children:
    """Candidate children of n nodes, a row for each, likeliest first."""

    tokens: Ints
    """[n, c], no two of a row equal."""
    log_probabilities: Scores
    """[n, c], raw (not calibrated), descending; -inf where there is no candidate."""
    levels: Sequence[DrawnLevel] = ()
    """The levels that were drawn below these nodes in the same expansion."""

    def at(self, rows: Ints) -> Children:
        """Select the children of some of the nodes [m], without the levels below them."""
        return Children(self.tokens.take(rows, axis=0), self.log_probabilities.take(rows, axis=0))

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[int, float]]]) -> Children:
        """Make columns of rows of (token, log-probability), likeliest first, which need not be equally long."""
        width = max(map(len, rows), default=0)
        padded = [[*row, *[(-1, -math.inf)] * (width - len(row))] for row in rows]
        found = np.array(padded, dtype=np.float64).reshape(len(rows), width, 2)
        return Children(found[:, :, 0].astype(np.int64), found[:, :, 1])


@dataclass(frozen=True, slots=True)
class DrawnLevel:
    """The best children, by score, of the nodes of the level above, and the children of these."""

    parents: Ints
    """[n] rows of the level above."""
    tokens: Ints
    """[n]"""
    children: Children


@dataclass(frozen=True, slots=True)
class WholeTree:
    """All that a kind draws below a root in one expansion: the root and n - 1 nodes below it, parents first, each with its candidates."""

    above: Sequence[int]
    """[n] row of each node's parent; -1 for the root, which is the first."""
    tokens: Sequence[int]
    """[n], of which the root's is not looked at."""
    children: Children
    """[n, c]; the nodes, but for the root, are among the candidates of their parents."""


ExpansionOutcome: TypeAlias = Children | WholeTree | SpecsplitError | None
"""The outcome of an expansion for one session: children of the nodes, or a whole tree below the root; None for not yet; or an error,
after which the session must be closed."""


@dataclass(frozen=True, slots=True)
class AppliedCommit:
    """A commit as a proposer sees it, when the session's tree is rerooted."""

    tokens: Sequence[int]
    """The committed tokens, the bonus (the new root) last."""
    accepted: Sequence[int]
    """Slots, before the reroot, of the accepted nodes, the one below the old root first; one fewer than tokens."""
    new_slots: Ints | None
    """The new slot of every old one [n], -1 for the dead. None after a miss: nothing survives."""

    @property
    def path(self) -> list[int]:
        """Slots, before the reroot, of the committed tokens that were nodes, the bonus among them after a hit."""
        return [*self.accepted] if self.new_slots is None else [*self.accepted, int((self.new_slots == ROOT).argmax())]


@dataclass(frozen=True)
class ProposerPages:
    """How full the KV pool is; zeros for a kind that has none."""

    used: int
    total: int


class Proposer(Protocol):
    """One kind of drafter. Not thread-safe: the engine's thread owns it."""

    @property
    def info(self) -> DrafterInfo:
        """The info that verifiers get."""
        ...

    @property
    def group(self) -> GroupForwards | None:
        """The forwards that it runs together with the other ranks of its group; None: it is alone."""
        ...

    @property
    def pages(self) -> ProposerPages:
        """KV slots in use."""
        ...

    @property
    def graphs(self) -> GraphStatistics:
        """How many of its model's forwards were replayed or run eagerly, and why. Any thread may ask."""
        ...

    @property
    def free_kv_slots(self) -> int:
        """Nodes, roots not counted, that can be expanded now."""
        ...

    @property
    def max_depth(self) -> int:
        """Depth below the root from which on no node can be expanded; at least 1."""
        ...

    @property
    def redraws(self) -> bool:
        """True if nodes are to be expanded again after a commit, each one after its parent, which makes their children better."""
        ...

    @property
    def shares_root(self) -> bool:
        """True if a root may stand in a frontier with nodes two levels below it and deeper: a root that is expanded again has some."""
        ...

    @property
    def drafts_blocks(self) -> bool:
        """True if every expansion draws the levels below its nodes too, at no cost of their own. Any nodes may be expanded at any time,
        and those of these levels are still to be: an expansion of their own makes their children better."""
        ...

    @property
    def weights(self) -> DraftWeights | None:
        """The weights of its model; None for a kind without one."""
        ...

    @property
    def max_levels(self) -> int:
        """Levels that one expansion can draw, the frontier's own counted; 1 for a kind that does not descend."""
        ...

    @property
    def distances(self) -> int:
        """How many distances from the last true feature are calibrated apart; 1 for a kind that reads none."""
        ...

    def prepare(self) -> bool:
        """Do something now that later expansions would have to do, while nothing else is to be done. False: there is nothing."""
        ...

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        """Begin a session as its verifier opened it. Raises Exhausted if its context does not fit now.

        Only sessions of one scope and one vocabulary may draw on one another, and one without a scope on none.
        """
        ...

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        """Follow a commit. Raises Exhausted if the longer context does not fit now; the session must then be closed."""
        ...

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> Sequence[ExpansionOutcome]:
        """Propose children of each session's nodes, all in one batch; no session stands there twice.

        With more `levels`, and where a part of the frontier has a scoring, the best of these children are expanded too, as by a further
        call in whose frontier they stand, and so on: `levels` in all, or fewer where there is no room or the kind does not go so deep.
        `assign_levels` must follow then.

        None means not yet: the session's context is still being read, a part with each call, and the caller asks again. Only a frontier
        with a root can get it. An error ends that session and no other; an exception ends the proposer.
        """
        ...

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Assign KV to the nodes of the levels that were drawn below a frontier, and free the rest.

        `slots`: by level the slots of its nodes in the tree [n]; -1 for those that became no nodes, or were not to be expanded.
        """
        ...

    def close(self, session: SessionKey) -> None:
        """Forget a session and free what it held. Raises KeyError for an unknown one."""
        ...

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Take features in; they are read by `expand`. Raises InvalidRequest, naming the field, for any but the next ones."""
        ...

    def stalled(self, session: SessionKey) -> bool:
        """Tell whether nothing can be done for the session before more features arrive."""
        ...

    def pending(self, session: SessionKey) -> int:
        """Count the committed tokens of a session that are not read yet; `expand` reads them."""
        ...

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Tell which open sessions had features read since the last call, and below which position all have been."""
        ...


class ProposerDefaults:
    """The answers of a kind that reads no features, and has no model that descends or that ranks could share."""

    group: None = None
    max_levels: int = 1
    graphs: GraphStatistics = GraphStatistics()
    max_depth: int = UNBOUNDED
    redraws: bool = False
    shares_root: bool = False
    drafts_blocks: bool = False
    distances: int = 1

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Refuse features: nothing reads them."""
        raise InvalidRequest("features", "were sent to a drafter that reads none")

    def stalled(self, session: SessionKey) -> bool:
        """Tell that it never waits for features."""
        return False

    def prepare(self) -> bool:
        """Tell that there is nothing."""
        return False

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Do nothing: no levels are drawn below a frontier."""

    @property
    def weights(self) -> None:
        """None: it has no model."""
        return

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Return nothing: no features are read."""
        return ()

"""What any kind of drafter must be able to do.

A proposer knows tokens, not scores: which node is worth expanding and which child is worth pushing is `growth`'s affair. It sees a
session as a committed sequence whose last token is the root, and the session's tree below it, to which it may attach columns. A node is
expanded in a later expansion than its parent, and at most once, or with a kind that redraws at most once after every commit. A root stands
in a frontier alone, or with a kind that shares it, with nodes whose parents are not the root.

A kind may *descend*: expand the best children of a frontier in the same go, and theirs, several levels deep. It is told how to score them
(`Scoring`), and gives back what it has drawn. Which of that become nodes is growth's affair again: it says so with `assign_levels`.

A kind that drafts with a head also reads *features* of the committed tokens. They come when the verifier has them, so a session may
be stalled: nothing can be done for it before more arrive. Every other kind takes what `ProposerDefaults` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.features import FeatureLayout, Features
from specsplit.records import GraphStatistics
from specsplit.tree import ROOT, Ints, Scores, TokenTree
from specsplit.values import DrafterInfo, Sampling

if TYPE_CHECKING:  # it takes torch, which not every kind needs
    from specsplit_drafter.drafts.group_forwards import GroupForwards

UNBOUNDED: Final = 1 << 30
SessionKey: TypeAlias = tuple[int, int]
"""Number of the stream on this drafter, session id on that stream: verifiers choose session ids without knowing of one another."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How growth scores what hangs below the nodes of a frontier, for a proposer that descends."""

    scores: Scores
    """[n] log-survivals of the nodes."""
    distances: Ints
    """[n] by which they are calibrated; that of a child is one more."""
    shifts: Scores
    """[D, R, 24] calibration by distance and rank, the last of each for all that are farther (calibration.py)."""
    floor: float
    """Log-survival below which a child is not worth it."""
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
    """None: nothing is to be expanded below them in the same go."""


@dataclass(frozen=True, slots=True)
class Children:
    """Candidate children of n nodes, a row for each, likeliest first."""

    tokens: Ints
    """[n, c], no two of a row equal."""
    log_probabilities: Scores
    """[n, c], raw (not calibrated), descending; -inf where there is no candidate."""
    levels: Sequence[DrawnLevel] = ()
    """What was drawn below these nodes in the same go, level by level."""

    def at(self, rows: Ints) -> Children:
        """Take the children of some of the nodes [m], and nothing of what was drawn below them."""
        return Children(self.tokens.take(rows, axis=0), self.log_probabilities.take(rows, axis=0))

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[int, float]]]) -> Children:
        """Put rows of (token, log-probability), likeliest first, together; they need not be equally long."""
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


ExpansionOutcome: TypeAlias = Children | SpecsplitError | None
"""What became of a session's frontier in an expansion. None: not yet; an error: the session must be closed."""


@dataclass(frozen=True, slots=True)
class AppliedCommit:
    """What a commit means to a proposer. The session's tree is rerooted already."""

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
    """How full the KV pool is; zeros for a kind that keeps none."""

    used: int
    total: int


class Proposer(Protocol):
    """One kind of drafter. Not thread-safe: the engine's thread owns it."""

    @property
    def info(self) -> DrafterInfo:
        """What it says of itself to verifiers."""
        ...

    @property
    def group(self) -> GroupForwards | None:
        """How it expands together with the other ranks of its group; None: it is alone."""
        ...

    @property
    def pages(self) -> ProposerPages:
        """KV slots in use."""
        ...

    @property
    def graphs(self) -> GraphStatistics:
        """What has become of its model's forwards. Any thread may ask."""
        ...

    @property
    def free_kv_slots(self) -> int:
        """Nodes, roots not counted, that can be expanded now."""
        ...

    @property
    def max_depth(self) -> int:
        """Only nodes less deep than this below the root can be expanded; at least 1."""
        ...

    @property
    def redraws(self) -> bool:
        """True if nodes are to be expanded again after a commit, each one after its parent: their children are better for it."""
        ...

    @property
    def shares_root(self) -> bool:
        """True if a root may stand in a frontier with nodes two levels below it and deeper: a root that is expanded again has some."""
        ...

    @property
    def max_levels(self) -> int:
        """Levels that one expansion can draw, the frontier's own counted; 1 for a kind that does not descend."""
        ...

    def open(
        self, session: SessionKey, tree: TokenTree, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0
    ) -> None:
        """Begin a session on committed tokens, the root last. Raises Exhausted if its context does not fit now.

        `prompt_tokens`: so many of them, from the front, were not generated; 0: all of them.
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

        None means not yet: the session's context is still being read, a part with each call; only a frontier with a root can get it.
        Ask again.
        An error ends that session and no other; what is raised is the proposer's own end.
        """
        ...

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Take in what became of every level that was drawn below a frontier: the slots of its nodes in the tree [n], -1 for those that
        are none, or were not to be expanded. What was kept for these is freed."""
        ...

    def close(self, session: SessionKey) -> None:
        """Forget a session and free what it held. An unknown one is a KeyError."""
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
    """What kinds that read no features, and have no model that descends or that ranks could share, have to say of these."""

    group: None = None
    max_levels: int = 1
    graphs: GraphStatistics = GraphStatistics()
    max_depth: int = UNBOUNDED
    redraws: bool = False
    shares_root: bool = False

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Refuse features: nothing reads them."""
        raise InvalidRequest("features", "were sent to a drafter that reads none")

    def stalled(self, session: SessionKey) -> bool:
        """Tell that it never waits for features."""
        return False

    def assign_levels(self, session: SessionKey, slots: Sequence[Ints]) -> None:
        """Do nothing: nothing is drawn below a frontier."""

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Tell of nothing: no features are read."""
        return ()

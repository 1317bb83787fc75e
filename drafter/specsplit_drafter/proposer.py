"""What any kind of drafter must be able to do.

A proposer knows tokens, not scores: which node is worth expanding and which child is worth pushing is `growth`'s affair. It sees a
session as a committed sequence whose last token is the root, and expanded nodes below the root. A node is expanded at most once,
and never before its parent; a root may be expanded again, and stands in a frontier without any node of its session.

A kind that drafts with a head also reads *features* of the committed tokens. They come when the verifier has them, so a session may
be stalled: nothing can be done for it before more arrive. Every other kind takes what `NoFeatures` says.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.features import FeatureLayout, Features
from specsplit.values import DrafterInfo, Sampling

UNBOUNDED: Final = 1 << 30
SessionKey: TypeAlias = tuple[int, int]
"""Number of the stream on this drafter, session id on that stream: verifiers choose session ids without knowing of one another."""


class FrontierNode(NamedTuple):
    """A node (or the root) that is to be expanded now."""

    session: SessionKey
    node: int
    """Its id; for the root, the id that `Advance.root` (or 0 after open) gave it."""
    parent: int
    """Id of its parent, which was expanded before; of no meaning for the root."""
    token: int
    position: int
    """Index of the token in the sequence; the prompt begins at 0."""


@dataclass(frozen=True)
class Children:
    """Candidate children of one node, likeliest first."""

    tokens: npt.NDArray[np.int64]
    """[n], no two equal."""
    log_probabilities: npt.NDArray[np.float64]
    """[n], raw (not calibrated), descending."""


Expanded: TypeAlias = Children | SpecsplitError | None
"""What became of a node in an expansion. None: not yet; an error: its session must be closed."""


@dataclass(frozen=True)
class Advance:
    """What a commit means to a proposer."""

    tokens: Sequence[int]
    """The committed tokens, the bonus (the new root) last."""
    accepted: Sequence[int]
    """Ids of the accepted nodes, the one below the old root first; one fewer than tokens."""
    root: int
    """The new root: the id of the node it was, 0 if it was none."""
    survivors: Set[int]
    """Ids of the nodes that live on below the new root."""


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
    def pages(self) -> ProposerPages:
        """KV slots in use."""
        ...

    @property
    def room(self) -> int:
        """Nodes, roots not counted, that can be expanded now."""
        ...

    @property
    def max_depth(self) -> int:
        """Only nodes less deep than this below the root can be expanded; at least 1."""
        ...

    @property
    def renews_root(self) -> bool:
        """True if a root is to be expanded after every commit, also if it has been as a node: its children are better for it."""
        ...

    def open(self, session: SessionKey, tokens: Sequence[int], sampling: Sampling, prompt_tokens: int = 0) -> None:
        """Begin a session on committed tokens, the root last. Raises Exhausted if its context does not fit now.

        `prompt_tokens`: so many of them, from the front, were not generated; 0: all of them.
        """
        ...

    def commit(self, session: SessionKey, advance: Advance) -> None:
        """Follow a commit. Raises Exhausted if the longer context does not fit now; the session must then be closed."""
        ...

    def expand(self, frontier: Sequence[FrontierNode]) -> Sequence[Expanded]:
        """Candidate children of each node, all in one batch.

        None means not yet: the session's context is still being read, a part with each call; only a root can get it. Ask again.
        An error at any node of a session ends that session and no other; what is raised is the proposer's own end.
        """
        ...

    def close(self, session: SessionKey) -> None:
        """Forget a session and free what it held. An unknown one is a KeyError."""
        ...

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Take features in; they are read by `expand`. Raises InvalidRequest, naming the field, for any but the next ones."""
        ...

    def stalled(self, session: SessionKey) -> bool:
        """True if nothing can be done for the session before more features arrive."""
        ...

    def pending(self, session: SessionKey) -> int:
        """Committed tokens of a session that are not read yet; `expand` reads them."""
        ...

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """Open sessions whose features were read since the last call, and the position below which all have been."""
        ...


class NoFeatures:
    """What kinds that read no features have to say of them."""

    max_depth: int = UNBOUNDED
    renews_root: bool = False

    def feed(self, session: SessionKey, features: Features, layout: FeatureLayout) -> None:
        """Refuse."""
        raise InvalidRequest("features", "were sent to a drafter that reads none")

    def stalled(self, session: SessionKey) -> bool:
        """Never."""
        return False

    def take_read(self) -> Sequence[tuple[SessionKey, int]]:
        """None."""
        return ()


def by_session(frontier: Sequence[FrontierNode]) -> dict[SessionKey, list[int]]:
    """Indices in the frontier of each session's nodes."""
    members: dict[SessionKey, list[int]] = {}
    for i, node in enumerate(frontier):
        members.setdefault(node.session, []).append(i)
    return members

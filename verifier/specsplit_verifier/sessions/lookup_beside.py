"""Lookup of the verifier beside a session's drafter: both draft, and a step takes the best of both (docs/adr/0044).

The two trees become one when a draft is chosen, by (parent, token): what both have is the drafter's node. The mirror stays the copy of
what the drafter has grown. Of tokens that it has not drawn the drafter hears as of forced ones. While what is looked up brings less than
the time that it takes, lookup rests (`lookup_standing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from specsplit.speculation import Draft
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.forced import FIRST_ID, UNKNOWN_ID
from specsplit_verifier.sessions.joint_calibration import JointCalibration, Said
from specsplit_verifier.sessions.lookup_standing import LookupPrice, LookupStanding
from specsplit_verifier.sessions.lookup_tree import LookupTree
from specsplit_verifier.sessions.tree_limits import TreeLimits


class _Merged(NamedTuple):
    """A drafter's draft with what is looked up."""

    limits: TreeLimits
    own: Draft
    """The drafter's."""
    draft: Draft
    said: dict[int, Said]
    """What is said of the edge of each node, the drafter first, by id."""

    def serves(self, own: Draft, limits: TreeLimits) -> bool:
        """Tell whether the beginning of this is what comes of that draft within those limits."""
        return limits.narrows(self.limits) and self.own.first(len(own.ids)) == own


class Together:
    """What is known of a drafter and lookup beside it, in whatever session."""

    def __init__(self) -> None:
        self.calibration: Final = JointCalibration()
        self.standings: Final = LookupStanding(), LookupStanding()
        """Of texts that do not repeat themselves now, and of those that do."""


class LookupBeside:
    """One session's."""

    def __init__(self, tree: LookupTree, together: Together, price: LookupPrice) -> None:
        """`together`: what is known of the drafter and lookup. `price`: what a lookup takes."""
        self._tree = tree
        self._together = together
        self._price = price
        self._standing = together.standings[False]
        self.resting = self._standing.resting
        """True if nothing is looked up for the next step."""
        self._merged: _Merged | None = None
        self._merging_s = 0.0
        """Seconds that the latest merge took, with the lookup if that was made for it. While those before it were made nobody waited."""

    @property
    def nodes(self) -> int:
        """Nodes that were looked up."""
        return self._tree.nodes

    @property
    def draft(self) -> Draft | None:
        """The draft of both, as it was merged last; None: it has not been since the last commit."""
        return None if self._merged is None else self._merged.draft

    def merged(self, own: Draft, limits: TreeLimits) -> Draft:
        """The best of a drafter's draft and of what is looked up, within these limits."""
        if self.resting:
            return own
        if self._merged is None or not self._merged.serves(own, limits):
            began = self._price.now()
            self._merged = self._merge(own, self._tree.best(limits), limits)
            self._merging_s = self._price.now() - began
        return self._merged.draft.first(limits.num_draft_tokens)

    def _merge(self, own: Draft, looked_up: Draft, limits: TreeLimits) -> _Merged:
        union, said = _union(own, looked_up)
        weighed = union.weighed([0.0, *self._together.calibration.edges(said)])
        draft = weighed.likeliest(limits.num_draft_tokens, limits.topk)
        return _Merged(limits, own, draft, dict(zip(union.ids[1:], said, strict=True)))

    def meet(self, *, repeating: bool) -> bool:
        """The text repeats itself now, or does not -> whether lookup rests since then, or works again."""
        self._standing = self._together.standings[repeating]
        changed = self.resting is not self._standing.resting
        if changed:
            self.resting, self._merged = self._standing.resting, None
        return changed

    def commit(self, draft: Draft, accepted: Accepted) -> None:
        """Take in what was committed, and learn from what became of the nodes of both."""
        tokens, merged = accepted.commits(draft), self._merged
        self._merged = None
        if self.resting:
            self._tree.read(tokens)
            self._standing.rested()
        elif merged is None:  # the step had no use for drafts
            self._follow(tokens)
        else:
            self._weigh(merged, draft, accepted.path, tokens)
        self.resting = self._standing.resting

    def _weigh(self, merged: _Merged, draft: Draft, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Learn from a step what was looked up for it took, and brought beside what the drafter had in the place of that."""
        began = self._price.now()
        self._learn(merged.said, draft, path)
        self._follow(tokens)
        self._price.took(self._merging_s + self._price.now() - began)
        if max(draft.ids) < FIRST_ID:  # else it is not plain what would have been drafted without
            alone = _length_along(merged.own.first(len(draft.ids)), tokens)
            self._standing.stepped(len(tokens) - 1 - alone, self._price.tokens)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Go on below the tokens that were committed."""
        along = 0 if self._tree.whole is None else _length_along(self._tree.whole, tokens)
        self._tree.commit(tokens, min(along, len(tokens) - 1), hit=along == len(tokens))

    def _learn(self, said: dict[int, Said], draft: Draft, path: Sequence[int]) -> None:
        taken = set(path)
        tried = [
            index
            for index, parent in enumerate(draft.parents)
            if parent in taken and draft.ids[index] in said  # not one that a grammar forces
        ]
        self._together.calibration.observe(
            [said[draft.ids[index]] for index in tried], [index in taken for index in tried]
        )

    def close(self) -> None:
        """Count the session no more."""
        self._tree.close()


def _union(own: Draft, looked_up: Draft) -> tuple[Draft, list[Said]]:
    """All nodes of both, parents before children, without survivals, and what either says of the edge of each."""
    ids, tokens, parents, positions = list(own.ids), list(own.tokens), list(own.parents), list(own.positions)
    said = [Said(edge, None) for edge in own.edges]
    slots = {link: slot for slot, link in enumerate(zip(parents, tokens, strict=True))}
    places = [0]
    nodes = zip(looked_up.ids, looked_up.tokens, looked_up.parents, looked_up.positions, looked_up.edges, strict=True)
    for number, (node_id, token, above, position, edge) in enumerate(nodes):
        if not number:
            continue  # the root
        parent = places[above]
        slot = slots.setdefault((parent, token), len(ids))
        places.append(slot)
        if slot < len(ids):
            said[slot] = Said(said[slot].first, edge)
            continue
        ids.append(UNKNOWN_ID + node_id)
        tokens.append(token)
        parents.append(parent)
        positions.append(position)
        said.append(Said(None, edge))
    return Draft(ids, tokens, parents, positions, ()), said[1:]


def _length_along(draft: Draft, tokens: Sequence[int]) -> int:
    """Count the tokens, from the first on, that are a path below the root of a draft."""
    slots = {link: slot for slot, link in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    at: int | None = 0
    for length, token in enumerate(tokens):
        at = slots.get((at, token))
        if at is None:
            return length
    return len(tokens)

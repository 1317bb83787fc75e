"""Drafts of what a grammar says has to follow: the keys of a schema and what stands between its values. They cost nothing to draw.

They are drafts as any other: a text may be spelled by other tokens than those that a tokenizer would take, and the target decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from specsplit.grammar import GrammarState
from specsplit.speculation import Draft
from specsplit_verifier.records.step import TreeView
from specsplit_verifier.sessions.tree_limits import TreeLimits

UNKNOWN_ID: Final = 2**40
"""Nodes that the drafter has not drawn have ids from here on: above those of every drafter, and exact in a JSON number."""
FIRST_ID: Final = 2 * UNKNOWN_ID
"""Nodes that are forced have ids from here on."""
EDGE: Final = math.log(0.95)
"""That a forced token is the target's, given those before it."""


def forced_first(draft: Draft, limits: TreeLimits) -> Draft:
    """Put what is forced into a draft, as far as the limits allow, and drop what does not follow it."""
    if not limits.forced:  # nearly always
        return draft
    forced = limits.forced[: max(0, min(limits.num_steps, limits.num_draft_tokens - 1))]
    return _chained(draft, forced, limits.num_draft_tokens) if forced else draft


def forced_last(draft: Draft, grammar: GrammarState, limits: TreeLimits) -> Draft:
    """Put behind the likeliest path of a draft what is forced there, in the place of nodes that are less likely."""
    path = _likeliest(draft)
    taken, forced = grammar.forced_behind([draft.tokens[index] for index in path[1:]])
    room = min(limits.num_steps - taken, limits.num_draft_tokens - 1 - taken)
    end, forced = path[taken], forced[: max(0, room)]
    if not forced:
        return draft
    own = {draft.tokens[index] for index, parent in enumerate(draft.parents) if parent == end}
    if forced[0] in own:
        return draft
    first, surer = len(draft.ids), draft.log_survivals[end]
    chain = range(1, 1 + len(forced))
    longer = Draft(
        [*draft.ids, *(FIRST_ID + taken + depth for depth in chain)],
        [*draft.tokens, *forced],
        [*draft.parents, end, *range(first, first + len(forced) - 1)],
        [*draft.positions, *(draft.positions[end] + depth for depth in chain)],
        [*draft.log_survivals, *(surer + depth * EDGE for depth in chain)],
    )
    return longer.likeliest(limits.num_draft_tokens)


def _likeliest(draft: Draft) -> list[int]:
    """Indices of the path from the root on which each node is the likeliest child; nodes stand best first."""
    path = [0]
    for index, parent in enumerate(draft.parents):
        if parent == path[-1]:
            path.append(index)
    return path


def known_of(draft: Draft, path: Sequence[int]) -> Sequence[int]:
    """The part of an accepted path, from the root down, whose nodes a drafter has drawn."""
    if len(path) == 1:  # nearly always
        return path
    return [index for place, index in enumerate(path) if not place or draft.ids[index] < UNKNOWN_ID]


def with_unknown(view: TreeView, draft: Draft) -> TreeView:
    """A speculation with the nodes of a draft that the drafter has not drawn, as far as they are not in it. Their ids are the highest."""
    ids, parents, tokens, edges = list(view.ids), list(view.parents), list(view.tokens), list(view.edges)
    places = {node_id: place for place, node_id in enumerate(ids)}
    for index, edge in enumerate(draft.edges):
        node_id, above = draft.ids[index], draft.parents[index]
        if index and node_id >= UNKNOWN_ID and node_id not in places:
            places[node_id] = len(ids)
            ids.append(node_id)
            parents.append(places[draft.ids[above]] if above else 0)
            tokens.append(draft.tokens[index])
            edges.append(edge)
    return TreeView(ids, parents, tokens, edges)


def _chained(draft: Draft, forced: Sequence[int], most: int) -> Draft:
    """A chain of forced tokens below the root, and below its end what the draft has there: `most` tokens, the root included.

    A token of the chain is the draft's own node where that has it.
    """
    below = {
        (parent, token): index for index, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))
    }
    root = draft.positions[0]
    ids, tokens, parents, positions, log_survivals = [draft.ids[0]], [draft.tokens[0]], [-1], [root], [0.0]
    at: int | None = 0
    for depth, token in enumerate(forced, 1):
        at = None if at is None else below.get((at, token))
        ids.append(FIRST_ID + depth if at is None else draft.ids[at])
        tokens.append(token)
        parents.append(depth - 1)
        positions.append(root + depth)
        log_survivals.append(depth * EDGE)
    if at is not None:
        places, surer = {at: len(forced)}, log_survivals[-1] - draft.log_survivals[at]
        for index, parent in enumerate(draft.parents):
            if parent in places and len(ids) < most:
                places[index] = len(ids)
                ids.append(draft.ids[index])
                tokens.append(draft.tokens[index])
                parents.append(places[parent])
                positions.append(draft.positions[index])
                log_survivals.append(draft.log_survivals[index] + surer)
    return Draft(ids, tokens, parents, positions, log_survivals)

"""Drafts of which a grammar allows few: the values of an enumeration, `true` and `false`, what may stand behind an item of a list.

Beside what a drafter has there, all of them are drafted. Those that it names are as likely as it says, and the others share what it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from specsplit.grammar.outline import Outline
from specsplit.speculation import Draft
from specsplit_verifier.sessions.forced import EDGE, FIRST_ID, forced_first
from specsplit_verifier.sessions.tree_limits import TreeLimits

_ALL_BUT: Final = 0.95
"""What a drafter may say of all that it names at a place, at most: it knows not always what else may stand there."""


def grammar_first(draft: Draft, limits: TreeLimits) -> Draft:
    """Put what a grammar forces into a draft, and what it nearly forces behind it, as far as the limits allow."""
    draft = forced_first(draft, limits)
    if limits.grammar is None or limits.all_forced or not limits.grammar.outline.tokens:  # nearly always
        return draft
    return _outlined(draft, limits.grammar.outline, limits)


def _outlined(draft: Draft, outline: Outline, limits: TreeLimits) -> Draft:
    """Hang an outline below the end of what is forced, and take the best of all."""
    end = len(limits.forced)
    named = _named(draft, outline, end)
    ids, tokens, parents = list(draft.ids), list(draft.tokens), list(draft.parents)
    positions, edges = list(draft.positions), draft.edges
    left, deepest = _left(outline, named, edges), draft.positions[0] + limits.num_steps
    for number, (token, above) in enumerate(zip(outline.tokens, outline.parents, strict=True)):
        parent, part = named.get(above), outline.parts[number]
        if number in named:
            edges[named[number]] = EDGE if part == 1.0 else edges[named[number]]
        elif parent is not None and positions[parent] < deepest:
            named[number] = len(ids)
            ids.append(FIRST_ID + end + 1 + number)
            tokens.append(token)
            parents.append(parent)
            positions.append(positions[parent] + 1)
            edges.append(EDGE + math.log(part * left.get(above, 1.0)))
    whole = Draft(ids, tokens, parents, positions, ()).weighed(edges)
    return whole.likeliest(limits.num_draft_tokens, limits.topk)


def _named(draft: Draft, outline: Outline, end: int) -> dict[int, int]:
    """The places in a draft of those tokens of an outline below `end` that it has; -1 is the end itself."""
    slots = {link: slot for slot, link in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    found = {-1: end}
    for number, (token, above) in enumerate(zip(outline.tokens, outline.parents, strict=True)):
        slot = slots.get((found[above], token)) if above in found else None
        if slot is not None:
            found[number] = slot
    return found


def _left(outline: Outline, named: Mapping[int, int], edges: Sequence[float]) -> dict[int, float]:
    """What the others are worth of their parts where some are named, by the place above them."""
    said, parts = dict[int, float](), dict[int, float]()
    for number, above in enumerate(outline.parents):
        if number in named:
            said[above] = said.get(above, 0.0) + math.exp(edges[named[number]])
            parts[above] = parts.get(above, 0.0) + outline.parts[number]
    return {above: (1.0 - min(said[above], _ALL_BUT)) / max(1.0 - parts[above], 1e-6) for above in said}

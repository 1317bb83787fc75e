"""Drafts of which nothing is taken that a grammar forbids: it would cost a place in a step, and never be accepted.

To take one token in costs a matcher some 2 us, and a mask 40 to 200 us, so this is done before the forward and masks while it runs.
"""

from __future__ import annotations

from specsplit.speculation import Draft
from specsplit_verifier.sessions.tree_limits import TreeLimits

_SURPLUS = 2
"""Times as many nodes as a step may take are looked at, since some fall away."""


def looked_at(limits: TreeLimits) -> TreeLimits:
    """The limits of what is looked at, of which the best that is allowed is taken."""
    if limits.grammar is None:  # nearly always
        return limits
    return limits._replace(num_draft_tokens=_SURPLUS * limits.num_draft_tokens)


def legal(draft: Draft, limits: TreeLimits) -> Draft:
    """Drop what the grammar forbids, with what is below it, and what the limits leave no place for."""
    if limits.grammar is None or len(draft.tokens) == 1:
        return draft.first(limits.num_draft_tokens)
    kept = limits.grammar.legal(draft.tokens, draft.parents)[: limits.num_draft_tokens]
    return draft if len(kept) == len(draft.tokens) else draft.ordered(kept)

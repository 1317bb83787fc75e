"""How one step's token budget is shared: prompts first, then features that drafters lack."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specsplit_verifier.sessions.session import Session

RECOMPUTE_TOKENS = 32  # of one session in a step beside others: about as much as two sessions bring to it
OLDEST_PART = 4  # of the budget one part in so many is for the oldest prompt, however many shorter ones come


def prompt_chunks(prefilling: Sequence[Session], budget: int) -> list[tuple[Session, int]]:
    """(session, tokens to prefill), in order of arrival. The oldest is sure of a part; of the rest the shortest remainder comes first."""
    wanted = {session.id: len(session.tokens) - 1 - session.kv_length for session in prefilling}
    sizes = dict.fromkeys(wanted, 0)
    oldest = prefilling[0].id
    sizes[oldest] = min(wanted[oldest], math.ceil(budget / OLDEST_PART))
    left = budget - sizes[oldest]
    for number in sorted(wanted, key=wanted.__getitem__):
        more = min(left, wanted[number] - sizes[number])
        sizes[number] += more
        left -= more
    return [(session, sizes[session.id]) for session in prefilling if sizes[session.id]]


def recompute_chunks(running: Sequence[Session], left: int) -> list[tuple[Session, range]]:
    """(session, positions to recompute) within `left` tokens, in equal parts: few each beside sessions that lack none."""
    lacking = [(s, s.drafter.recompute) for s in running if s.drafter.recompute]
    if len(lacking) < len(running):
        left = min(left, RECOMPUTE_TOKENS * len(lacking))
    lacking.sort(key=lambda pair: len(pair[1]))  # what a short one leaves of its part goes to those behind it
    chunks: list[tuple[Session, range]] = []
    for number, (session, positions) in enumerate(lacking):
        part = positions[: math.ceil(left / (len(lacking) - number))]
        if not part:
            break
        chunks.append((session, part))
        left -= len(part)
    return chunks

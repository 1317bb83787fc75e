"""Which drafter a session gets of those that are there, and which sessions of a drafter go to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from specsplit.membership import HandOver
from specsplit.values import Endpoint
from specsplit_verifier.sessions.drafter_record import DrafterRecord, RecordKey
from specsplit_verifier.sessions.session import Session

ALIKE: Final = 0.8
"""Drafters that bring at least this share of what the best brings to a step count as equally good."""
KNOWN_STEPS: Final = 32
"""Steps after which a drafter's results count; until then it counts as equally good too."""


def spread(
    drafters: Sequence[Endpoint], records: Mapping[RecordKey, DrafterRecord], *, sampled: bool
) -> Sequence[Endpoint]:
    """Order drafters, best first; those that are about as good as the first one for such text by how few sessions they have here."""
    if not drafters:
        return drafters
    best = _brings(records.get((drafters[0].address, sampled)))
    alike = [drafter for drafter in drafters if _alike(_brings(records.get((drafter.address, sampled))), best)]
    others = [drafter for drafter in drafters if drafter not in alike]
    return [*sorted(alike, key=lambda drafter: _sessions(drafter, records)), *others]


def _alike(brings: float | None, best: float | None) -> bool:
    return brings is None or best is None or brings >= ALIKE * best


def _brings(record: DrafterRecord | None) -> float | None:
    """Mean number of nodes accepted in a step; None: not known yet."""
    return None if record is None or record.steps < KNOWN_STEPS else record.accepted / record.steps


def _sessions(drafter: Endpoint, records: Mapping[RecordKey, DrafterRecord]) -> int:
    return sum(records[drafter.address, text].sessions for text in (False, True) if (drafter.address, text) in records)


def to_hand_over(order: HandOver, running: Iterable[Session], now: float) -> Sequence[Session]:
    """Choose those with the shortest texts, which cost least to open anew; for another kind first those to which drafts have brought least.

    Within a kind that would give the other drafter the hardest texts, by which it would seem to be the worse one.
    """
    willing = (
        session
        for session in running
        if session.drafter.address == order.source
        and session.sampled is order.sampled
        and (session.request.any_drafter or not order.other_kind)
        and not session.refused_by(order.target.address, now)
    )

    def place(session: Session) -> tuple[float, int]:
        return session.counters.accepted_a_step if order.other_kind else 0.0, len(session.tokens)

    return sorted(willing, key=place)[: order.sessions]

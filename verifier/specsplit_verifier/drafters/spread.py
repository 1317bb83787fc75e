"""In which order a session that needs a drafter tries those that are there, so that not all of them go to the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specsplit.values import Endpoint
from specsplit_verifier.sessions.drafter_record import DrafterRecord, RecordKey

ALIKE: Final = 0.8
"""Drafters that bring at least this share of what the best brings to a step count as equally good."""
KNOWN_STEPS: Final = 32
"""What a drafter brings is known after so many steps; until then it counts as equally good too."""


def spread(
    drafters: Sequence[Endpoint], records: Mapping[RecordKey, DrafterRecord], *, sampled: bool
) -> Sequence[Endpoint]:
    """`drafters`, best first, but those that bring such text about as much as the first in the order of how few sessions they have here."""
    if not drafters:
        return drafters
    best = _brings(records.get((drafters[0].address, sampled)))
    alike = [drafter for drafter in drafters if _alike(_brings(records.get((drafter.address, sampled))), best)]
    others = [drafter for drafter in drafters if drafter not in alike]
    return [*sorted(alike, key=lambda drafter: _sessions(drafter, records)), *others]


def _alike(brings: float | None, best: float | None) -> bool:
    return brings is None or best is None or brings >= ALIKE * best


def _brings(record: DrafterRecord | None) -> float | None:
    """Nodes accepted in a step; None: not known yet."""
    return None if record is None or record.steps < KNOWN_STEPS else record.accepted / record.steps


def _sessions(drafter: Endpoint, records: Mapping[RecordKey, DrafterRecord]) -> int:
    return sum(records[drafter.address, text].sessions for text in (False, True) if (drafter.address, text) in records)

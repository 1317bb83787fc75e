"""How an engine stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specsplit.records import PlanRecord
from specsplit.values import Load, NoDrafts
from specsplit_verifier.sessions.drafter_record import DrafterRecord, RecordKey


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A moment old when read from another thread."""

    load: Load
    """How busy it is, for heartbeats."""
    plan: PlanRecord
    """What sessions are under where their requests say nothing, and why."""
    drafters: Mapping[RecordKey, DrafterRecord] = field(default_factory=dict[RecordKey, DrafterRecord])
    """What every drafter has brought."""
    token_s: float = 0.0
    """What one more token costs in a step, in seconds."""
    prefixes: tuple[int, ...] = ()
    """Marks of pages with which texts begin; see `specsplit.prefix`."""
    no_drafts: NoDrafts | None = None
    """Why steps had no drafts lately; None: they had some, or there was no step."""

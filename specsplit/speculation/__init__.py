"""Grow/commit: the replicated token tree at the heart of specsplit. Pure: values in, values out."""

from specsplit.speculation.events import Commit, Draft, Grow
from specsplit.speculation.mirror import BULK_FROM, Mirror
from specsplit.speculation.original import Original, Reroot
from specsplit.speculation.states import TRANSITIONS, Event, Side, State

__all__ = [
    "BULK_FROM",
    "TRANSITIONS",
    "Commit",
    "Draft",
    "Event",
    "Grow",
    "Mirror",
    "Original",
    "Reroot",
    "Side",
    "State",
]

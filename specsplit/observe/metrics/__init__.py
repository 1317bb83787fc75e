"""What each service tells its metrics. All methods run on the event loop; with `on` False what happens often costs one test.

Engines know nothing of this: the edge feeds it from the records that they hand out anyway. The records are described here by the
attributes that are read of them (`StepCosts`, `SessionStep`, `DrafterTotals`, ...), so that no service has to convert its own.
"""

from __future__ import annotations

from specsplit.observe.metrics.base import Metrics
from specsplit.observe.metrics.coordinator import CoordinatorMetrics
from specsplit.observe.metrics.drafter import DrafterMetrics, DrafterTotals
from specsplit.observe.metrics.verifier import MOST_STEPS, LinkTotals, SessionStep, StepCosts, VerifierMetrics

__all__ = [
    "MOST_STEPS",
    "CoordinatorMetrics",
    "DrafterMetrics",
    "DrafterTotals",
    "LinkTotals",
    "Metrics",
    "SessionStep",
    "StepCosts",
    "VerifierMetrics",
]

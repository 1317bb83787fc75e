"""What each service tells its metrics. All methods run on the event loop; with `on` False what happens often costs one test.

Engines know nothing of this: the edge feeds it from the records that they hand out anyway (`specsplit.records`).
"""

from __future__ import annotations

from specsplit.observe.metrics.base import Metrics
from specsplit.observe.metrics.coordinator import CoordinatorMetrics
from specsplit.observe.metrics.drafter import DrafterMetrics
from specsplit.observe.metrics.verifier import MOST_STEPS, VerifierMetrics

__all__ = [
    "MOST_STEPS",
    "CoordinatorMetrics",
    "DrafterMetrics",
    "Metrics",
    "VerifierMetrics",
]

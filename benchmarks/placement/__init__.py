"""The `placement` benchmark: how evenly coordinators that do not know one another load the verifiers that they share, and what a placement
costs as there are more members.
"""

from __future__ import annotations

from benchmarks.context import Context
from benchmarks.placement import cost, evenness

__all__ = ["run"]


def run(context: Context) -> None:
    """Run both, print, write."""
    evenness.run(context)
    cost.run(context)

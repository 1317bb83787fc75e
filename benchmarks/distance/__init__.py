"""How far a drafter may be from its verifier: in virtual time, and with a real drafter whose loopback is delayed."""

from __future__ import annotations

from benchmarks.context import Context
from benchmarks.distance import loopback, virtual

__all__ = ["run"]


def run(context: Context) -> None:
    """Run both, print, write."""
    virtual.run(context)
    loopback.run(context)

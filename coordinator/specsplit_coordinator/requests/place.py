"""A place on a verifier that is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.need import Need
from specsplit_coordinator.requests.fair_queue import Claim


@dataclass(eq=False)
class Place:
    """A place that one session waits for."""

    need: Need
    again: bool
    """The session had a place before, and the verifier was lost or failed."""
    claim: Claim
    granted: asyncio.Future[Lease]
    absent_since: float | None = None
    """Since when no verifier may have it; None: one may, if it has room."""

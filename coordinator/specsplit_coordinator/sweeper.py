"""Looks, several times within the time that a member may be silent, for silent members, for verifiers that have cooled down, and for
sessions that another drafter would serve better.
"""

from __future__ import annotations

import asyncio
import logging

from specsplit.clock import Clock
from specsplit.observe import fields
from specsplit_coordinator.admission import Admission
from specsplit_coordinator.rebalancer import Rebalancer
from specsplit_coordinator.registry import Registry

_log = logging.getLogger(__name__)

SWEEPS = 5
"""Within the time that a member may be silent."""


async def sweep(
    registry: Registry, admission: Admission, rebalancer: Rebalancer, clock: Clock, lost_after_s: float
) -> None:
    """Until cancelled. A loop that stood still is no member's silence, so the time by which a sweep is late is not counted."""
    while True:
        due = clock.now() + lost_after_s / SWEEPS
        await asyncio.sleep(due - clock.now())
        try:
            _sweep(registry, admission, rebalancer, max(0.0, clock.now() - due))
        except Exception:  # noqa: BLE001 (the edge of a task: without its sweeper a coordinator would never notice a lost member again)
            _log.exception("a sweep failed; the next one comes as usual")


def _sweep(registry: Registry, admission: Admission, rebalancer: Rebalancer, late_s: float) -> None:
    for seat in registry.sweep(late_s):
        _log.warning("member lost", extra=fields(member_id=seat.member_id, why=seat.lost_because))
    admission.serve_waiting()
    rebalancer.look()

"""Looks, several times within the time that a member may be silent, for silent members, for verifiers that have cooled down, and for
sessions that another drafter would serve better.
"""

from __future__ import annotations

import asyncio
import logging

from specsplit.observe import fields
from specsplit_coordinator.cluster.rebalancer import Rebalancer
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission

_log = logging.getLogger(__name__)

SWEEPS = 5
"""Within the time that a member may be silent."""


class Sweeper:
    """Does what is to be done now and then."""

    def __init__(self, registry: Registry, admission: Admission, rebalancer: Rebalancer) -> None:
        self._registry = registry
        self._admission = admission
        self._rebalancer = rebalancer

    async def run(self) -> None:
        """Sweep until cancelled. A loop that stood still is no member's silence, so the time by which a sweep is late is not counted."""
        clock = self._registry.clock
        while True:
            due = clock.now() + self._registry.lost_after_s / SWEEPS
            await asyncio.sleep(due - clock.now())
            try:
                self._sweep(max(0.0, clock.now() - due))
            except Exception:  # noqa: BLE001 (the edge of a task: without its sweeper a coordinator would never notice a lost member again)
                _log.exception("a sweep failed; the next one comes as usual")

    def _sweep(self, late_s: float) -> None:
        for member in self._registry.sweep(late_s):
            _log.warning("member lost", extra=fields(member_id=member.member_id, why=member.lost_because))
        self._admission.serve_waiting()
        self._rebalancer.look()

"""Periodic work: removes silent members, gives waiting sessions places on verifiers that have cooled down, and rebalances sessions over
drafters.
"""

from __future__ import annotations

import asyncio
import logging

from specsplit.observe import fields
from specsplit_coordinator.cluster.rebalancer import Rebalancer
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission

_log = logging.getLogger(__name__)

ROUNDS = 5
"""Rounds within the time that a member may be silent."""


class Maintenance:
    """Runs the periodic work on the event loop."""

    def __init__(self, registry: Registry, admission: Admission, rebalancer: Rebalancer) -> None:
        self._registry = registry
        self._admission = admission
        self._rebalancer = rebalancer

    async def run(self) -> None:
        """Work until cancelled. The time by which a round is late does not count as silence of members: the loop could not hear them."""
        clock = self._registry.clock
        while True:
            due = clock.now() + self._registry.lost_after_s / ROUNDS
            await asyncio.sleep(due - clock.now())
            try:
                self._round(max(0.0, clock.now() - due))
            except Exception:  # noqa: BLE001 (the edge of a task: without this task a coordinator would never notice a lost member again)
                _log.exception("a round failed; the next one comes as usual")

    def _round(self, late_s: float) -> None:
        for member in self._registry.sweep(late_s):
            _log.warning("member lost", extra=fields(member_id=member.member_id, why=member.lost_because))
        self._admission.serve_waiting()
        self._rebalancer.rebalance()

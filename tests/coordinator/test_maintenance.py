"""The task that looks for silent members goes on, whatever one look meets."""

from __future__ import annotations

import asyncio

import pytest

from specsplit.clock import SystemClock
from specsplit.membership import Register
from specsplit.values import DrafterInfo, DrafterKind, Vocabulary
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.rebalancer import Rebalancer
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission
from specsplit_coordinator.requests.maintenance import Maintenance

LOST_AFTER_S = 0.01


class Stumbling(Rebalancer):
    """Fails at its first looks."""

    failures = 2
    looks = 0

    def rebalance(self) -> None:
        self.looks += 1
        if self.looks <= self.failures:
            raise ZeroDivisionError("float division by zero")
        super().rebalance()


async def test_a_look_that_fails_is_logged_and_the_next_one_finds_the_silent_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SystemClock()
    registry = Registry(Vocabulary(50), clock, LOST_AFTER_S)
    admission = Admission(registry, 1, 1.0)
    rebalancer = Stumbling(registry, DrafterScorer(registry, clock), admission.leases, clock)
    task = asyncio.create_task(Maintenance(registry, admission, rebalancer).run())
    try:
        async with asyncio.timeout(10):
            while rebalancer.looks <= rebalancer.failures:
                await asyncio.sleep(0)
            registry.register(Register("d", "d:1", DrafterInfo(DrafterKind.NGRAM, "", None, 512), 1))
            while registry.drafters:
                await asyncio.sleep(0)
    finally:
        task.cancel()
    failed = [record for record in caplog.records if record.exc_info]
    assert len(failed) == rebalancer.failures
    assert "ZeroDivisionError" in caplog.text, "with its traceback"

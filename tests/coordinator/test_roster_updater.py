"""The tasks that draw rosters and strike drafters out of them."""

from __future__ import annotations

import asyncio

from specsplit.clock import ManualClock
from specsplit.membership import Register
from specsplit.values import DrafterInfo, DrafterKind, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.roster_updater import RosterUpdater
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

HERE = Vocabulary(50, "aa")
SCORE_S = 100.0


class SlowScorer(DrafterScorer):
    """Needs minutes of the clock for a score, so that whoever draws rests for an hour."""

    def __init__(self, registry: Registry, clock: ManualClock) -> None:
        super().__init__(registry, clock)
        self.slow = clock

    def score(self, verifier: MemberState, drafter: MemberState, more: int = 0, *, sampled: bool) -> float:
        self.slow.advance(SCORE_S)
        return super().score(verifier, drafter, more, sampled=sampled)


async def test_a_loss_is_told_while_whoever_draws_rests_and_a_drafter_that_comes_is_not() -> None:
    clock = ManualClock()
    registry = Registry(HERE, clock, lost_after_s=1e9)
    join, drafter = registry.register, DrafterInfo(DrafterKind.STANDALONE, "", HERE, 512)
    members = [join(Register(f"d{number}", "d:1", drafter, 1)) for number in range(3)]
    rosters = Rosters(registry, SlowScorer(registry, clock))
    verifier, told = join(Register("v", "v:1", ModelInfo("toy", HERE, 512), 1)), asyncio.Event()
    assert len(rosters.latest(verifier).drafters) == 3
    rosters.subscribe(verifier, told.set)
    task = asyncio.create_task(RosterUpdater(registry, rosters).run())
    try:
        async with asyncio.timeout(30):
            join(Register("d3", "d:1", drafter, 1))
            await told.wait()
            assert len(rosters.latest(verifier).drafters) == 4, "drawn, and now it rests"
            told.clear()
            join(Register("d9", "d:9", drafter, 1))
            registry.remove(members[1], "gone")
            await told.wait()
        assert [each.member_id for each in rosters.latest(verifier).drafters] == ["d0", "d2", "d3"]
    finally:
        task.cancel()

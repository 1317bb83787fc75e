"""Drafters that are ranks of a group: who may draft, and what wakes them."""

from __future__ import annotations

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Unavailable
from specsplit.membership import GroupRank, Register, WaveReport
from specsplit.values import DrafterInfo, DrafterKind, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.drafter_placement import choose_drafter
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.requests.admission import Admission

TARGET = Vocabulary(50, "aa")
KIND = DrafterKind.MULTI_LAYER_EAGLE


def joined(registry: Registry, rank: int) -> MemberState:
    who = Register(f"d{rank}", "a:1", DrafterInfo(KIND, "", TARGET, 512), 4, group=GroupRank("g", rank, 2))
    return registry.register(who)


def test_drafters_of_a_group_are_used_while_all_of_its_ranks_are_there_and_none_drains() -> None:
    registry = Registry(TARGET, ManualClock(), 1.0)
    first = joined(registry, 0)
    assert not registry.usable_drafters and choose_drafter(registry.drafters, None, TARGET) is None
    with pytest.raises(Unavailable, match=r"1 multi_layer_eagle \(a group of 2 ranks lacks rank 1\)"):
        choose_drafter(registry.drafters, KIND.value, TARGET)
    second = joined(registry, 1)
    assert registry.usable_drafters == (first, second)
    assert choose_drafter(registry.drafters, None, TARGET) is first
    registry.drain(second)
    assert not registry.usable_drafters, "without one rank the other can do nothing"
    registry.remove(second, "it has left")
    assert not registry.usable_drafters


async def test_a_session_that_is_given_to_a_parked_drafter_group_starts_a_wave_on_it() -> None:
    registry = Registry(TARGET, ManualClock(), 1.0)
    registry.register(Register("v", "a:1", ModelInfo("toy", TARGET, 512), 4))
    members = [joined(registry, rank) for rank in range(2)]
    group = members[0].group
    assert group is not None and group is members[1].group and group.wave == 0
    lease = await Admission(registry, max_queue=4, retry_after_s=1).acquire()
    lease.take_drafter(members[1])
    assert group.wave == 1
    registry.on_wave_report(members[1], WaveReport(1, parked=True))
    lease.hand_over(members[0])
    assert group.wave == 2
    lease.release()

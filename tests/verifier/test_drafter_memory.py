"""What is remembered of drafters by address; tests/verifier/test_drafter_pool.py has which records are forgotten first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specsplit.values import Endpoint
from specsplit_verifier.drafters import memory as drafter_memory
from specsplit_verifier.drafters.memory import COOL_DOWN_S, FORGIVEN_S, LAST_COOL_DOWN_S, DrafterMemory


def test_patience_is_with_a_drafter_whatever_it_drafts_and_outlasts_its_sessions() -> None:
    memory = DrafterMemory()
    wait_policy, greedy = memory.recall("d:1", False)
    again, sampled = memory.recall("d:1", True)
    assert again is wait_policy and sampled is not greedy
    assert memory.recall("d:1", False) == (wait_policy, greedy) and memory.recall("e:1", False)[0] is not wait_policy


def test_patience_ends_with_the_last_record_of_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_memory, "REMEMBERED", 2)
    memory = DrafterMemory()
    wait_policy, _ = memory.recall("a:1", False)
    memory.recall("a:1", True)
    memory.recall("b:1", False)
    assert list(memory.records) == [("a:1", True), ("b:1", False)]
    assert memory.recall("a:1", True)[0] is wait_policy
    memory.recall("c:1", False)
    memory.recall("d:1", False)
    assert memory.recall("a:1", True)[0] is not wait_policy


def test_patience_with_a_drafter_in_use_does_not_end_when_its_other_record_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafter_memory, "REMEMBERED", 1)
    memory = DrafterMemory()
    memory.recall("a:1", True)
    wait_policy, record = memory.recall("a:1", False)
    assert list(memory.records) == [("a:1", False)]
    assert memory.recall("a:1", False) == (wait_policy, record)


def test_a_lost_drafter_cools_down_and_its_timing_is_learnt_anew_but_what_it_brought_stays() -> None:
    memory = DrafterMemory()
    wait_policy, record = memory.recall("a:1", False)
    memory.lost("a:1", 10.0)
    assert memory.cools_down("a:1", 10.0) and not memory.cools_down("b:1", 10.0)
    assert not memory.cools_down("a:1", 10.0 + COOL_DOWN_S)
    again, same = memory.recall("a:1", False)
    assert again is not wait_policy and same is record


def test_one_that_is_lost_while_another_cools_down_changes_nothing_for_that() -> None:
    memory = DrafterMemory()
    memory.lost("a:1", 10.0)
    memory.lost("b:1", 12.0)
    assert memory.cools_down("a:1", 14.0) and memory.cools_down("b:1", 14.0)
    assert not memory.cools_down("a:1", 16.0) and memory.cools_down("b:1", 16.0)


def test_a_drafter_that_is_lost_again_and_again_cools_down_ever_longer_until_it_has_kept_up_for_a_while() -> None:
    memory, now, cooled = DrafterMemory(), 0.0, list[float]()
    for _ in range(6):
        memory.lost("a:1", now)
        began = now
        while memory.cools_down("a:1", now):
            now += 1.0
        cooled.append(now - began)
    assert cooled == [5.0, 10.0, 20.0, 40.0, LAST_COOL_DOWN_S, LAST_COOL_DOWN_S]
    now += FORGIVEN_S
    memory.lost("a:1", now)
    assert memory.cools_down("a:1", now + 4.9) and not memory.cools_down("a:1", now + 5.0)


def test_a_head_that_rests_is_used_again_once_it_has_other_weights_is_lost_or_leaves() -> None:
    memory, heads = DrafterMemory(), [Endpoint(name, f"{name}:1", weights_version=2) for name in "abcd"]
    memory.rest(heads)
    memory.there([*heads[:3], replace(heads[0], weights_version=0)])
    assert [memory.cools_down(each.address, 0.0) for each in heads] == [True, True, True, False]
    memory.there([heads[0], replace(heads[1], weights_version=3), heads[2]])
    memory.lost("c:1", 0.0)
    assert [memory.cools_down(each.address, COOL_DOWN_S) for each in heads] == [True, False, False, False]
    memory.there([heads[0], heads[1]])
    assert not memory.cools_down("b:1", 0.0), "what was said of it is older than what is known"


def test_a_loss_that_is_said_by_several_sessions_counts_once() -> None:
    memory = DrafterMemory()
    for _ in range(16):
        memory.lost("a:1", 1.0)
    assert memory.cools_down("a:1", 5.9) and not memory.cools_down("a:1", 6.0)

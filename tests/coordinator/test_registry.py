"""Who is in the cluster: joining, reporting, silence, leaving. Time is turned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Incompatible, InvalidRequest, Unavailable
from specsplit.features import LAST, FeatureNeed
from specsplit.membership import GroupRank, Heartbeat, Register, WaveReport
from specsplit.values import DrafterInfo, DrafterKind, Endpoint, Load, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.members.group import FIRST_PATIENCE, Group
from specsplit_coordinator.members.groups import PATIENCE
from specsplit_coordinator.members.member_state import KIND_ORDER, MemberState
from specsplit_coordinator.members.registry import Registry

HERE = Vocabulary(50, "aa")


def verifier(name: str, vocabulary: Vocabulary = HERE, max_context: int = 512) -> Register:
    return Register(name, f"{name}:1", ModelInfo("toy", vocabulary, max_context), 2)


def drafter(name: str, kind: DrafterKind = DrafterKind.NGRAM, vocabulary: Vocabulary | None = None) -> Register:
    return Register(name, f"{name}:1", DrafterInfo(kind, "", vocabulary, 512), 2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> Registry:
    return Registry(HERE, clock, lost_after_s=2.0)


def test_a_member_is_listed_with_its_last_report_and_its_silence(registry: Registry, clock: ManualClock) -> None:
    member = registry.register(verifier("v1"))
    registry.on_heartbeat(member, Heartbeat(Load(sessions=1)))
    clock.advance(0.25)
    (member,) = registry.members
    assert (member.member_id, member.load.sessions, member.silent_ms, member.draining) == ("v1", 1, 250, False)


def test_a_name_that_is_taken_is_refused_and_free_again_afterwards(registry: Registry) -> None:
    member = registry.register(verifier("v1"))
    with pytest.raises(InvalidRequest, match=r"'v1' is already in the cluster, at v1:1"):
        registry.register(drafter("v1"))
    registry.remove(member, "its stream ended")
    registry.register(drafter("v1"))


def test_a_member_that_is_refused_takes_nothing_from_its_namesake_that_may_come_back(registry: Registry) -> None:
    registry.register(replace(verifier("g0"), group=GroupRank("g", 0, 2)))
    away = registry.register(verifier("v1"))
    registry.on_stream_ended(away, "its stream ended")
    for rank, size in ((0, 2), (1, 3)):
        with pytest.raises(InvalidRequest, match=r"register\.group"):
            registry.register(replace(verifier("v1"), group=GroupRank("g", rank, size)))
    assert away.lost_because is None
    assert registry.register(verifier("v1")) is away


def test_a_silent_member_is_lost_and_a_reporting_one_is_not(registry: Registry, clock: ManualClock) -> None:
    silent, loud = registry.register(verifier("v1")), registry.register(verifier("v2"))
    calls: list[str] = []
    silent.on_lost.append(lambda: calls.append("v1"))
    clock.advance(1.5)
    registry.on_heartbeat(loud, Heartbeat())
    clock.advance(0.6)
    assert registry.sweep() == (silent,)
    assert registry.verifiers == (loud,)
    assert calls == ["v1"]
    assert silent.lost_because == "it was silent for 2.1 s"
    registry.remove(silent, "again")
    assert calls == ["v1"]


def test_a_verifier_whose_stream_ended_may_come_back_to_its_sessions_until_it_has_been_away_for_too_long(
    registry: Registry, clock: ManualClock
) -> None:
    member = registry.register(verifier("v1"))
    for _ in range(2):
        registry.on_stream_ended(member, "its stream ended")
        registry.on_stream_ended(member, "again")
        assert registry.verifiers == () and member.absent and member.lost_because is None
        clock.advance(1.9)
        assert registry.sweep() == ()
        assert registry.register(verifier("v1")) is member and registry.verifiers == (member,) and not member.absent
    registry.on_stream_ended(member, "its stream ended")
    clock.advance(2.1)
    assert registry.sweep() == (member,) and member.lost_because == "its stream ended"
    assert registry.register(verifier("v1")) is not member


def test_another_that_takes_the_name_of_one_that_is_away_gets_a_state_of_its_own(registry: Registry) -> None:
    member = registry.register(verifier("v1"))
    registry.on_stream_ended(member, "its stream ended")
    other = registry.register(replace(verifier("v1"), address="elsewhere:1"))
    assert other is not member and registry.verifiers == (other,)
    assert member.lost_because == "another has its name now"


def test_who_drains_and_a_rank_and_a_drafter_are_gone_with_their_streams(registry: Registry) -> None:
    draining, (rank,) = registry.register(verifier("v9")), ranks(registry, 0)
    registry.drain(draining)
    for member in (draining, rank, registry.register(drafter("d1"))):
        registry.on_stream_ended(member, "its stream ended")
        assert member.lost_because == "its stream ended"


def test_a_verifier_with_another_vocabulary_is_refused_with_both_named(registry: Registry) -> None:
    with pytest.raises(Incompatible, match=r"verifier v1 .* 51 tokens.*coordinator's tokenizer has 50 tokens"):
        registry.register(verifier("v1", Vocabulary(51)))
    assert registry.members == ()


def test_two_verifiers_that_differ_are_refused_even_if_the_tokenizer_cannot_tell() -> None:
    registry = Registry(Vocabulary(50), ManualClock(), 2.0)
    registry.register(verifier("v1", Vocabulary(50, "aa")))
    with pytest.raises(Incompatible, match=r"verifier v2 .* digest bb; verifier v1 .* digest aa"):
        registry.register(verifier("v2", Vocabulary(50, "bb")))


def test_the_model_is_the_verifiers_with_the_shortest_context(registry: Registry) -> None:
    with pytest.raises(Unavailable, match="no verifier has joined"):
        registry.model()
    registry.register(verifier("v1", max_context=512))
    registry.register(verifier("v2", max_context=256))
    assert registry.model().max_context == 256


def test_a_roster_holds_the_fitting_drafters_best_kind_first(registry: Registry) -> None:
    member = registry.register(verifier("v1"))
    registry.register(drafter("n"))
    registry.register(drafter("s", DrafterKind.STANDALONE, HERE))
    registry.register(drafter("alien", DrafterKind.STANDALONE, Vocabulary(51)))
    registry.drain(registry.register(drafter("leaving")))
    assert Rosters(registry, DrafterScorer(registry, ManualClock())).compute(member).drafters == (
        Endpoint("s", "s:1"),
        Endpoint("n", "n:1"),
    )


def test_a_roster_orders_every_kind_and_says_what_each_needs(registry: Registry) -> None:
    assert set(KIND_ORDER) == set(DrafterKind)
    need = FeatureNeed((LAST,), 64)
    member = registry.register(verifier("v1"))
    for kind in DrafterKind:
        info = DrafterInfo(kind, "", None, 512, need if kind.is_head else FeatureNeed())
        registry.register(Register(kind.value, "d:1", info, 2))
    drafters = Rosters(registry, DrafterScorer(registry, ManualClock())).compute(member).drafters
    assert [each.member_id for each in drafters] == [kind.value for kind in KIND_ORDER]
    assert [each.features for each in drafters] == [*[need] * 5, FeatureNeed(), FeatureNeed()]


def test_watchers_hear_of_comings_and_goings_until_they_stop(registry: Registry) -> None:
    calls: list[int] = []
    stop = registry.subscribe(lambda: calls.append(1))
    member = registry.register(verifier("v1"))
    registry.on_heartbeat(member, Heartbeat())
    registry.drain(member)
    registry.remove(member, "it left")
    assert len(calls) == 3
    stop()
    registry.register(verifier("v1"))
    assert len(calls) == 3


def test_a_drafter_that_a_verifier_lost_cools_down_for_it_for_a_while(registry: Registry, clock: ManualClock) -> None:
    member = registry.register(verifier("v1"))
    registry.on_heartbeat(member, Heartbeat(lost_drafters=("d1",)))
    assert set(member.cooling_down) == {"d1"}
    clock.advance(6)
    registry.on_heartbeat(member, Heartbeat())
    assert not member.cooling_down


def test_a_coordinator_that_stood_still_blames_nobody_for_its_own_silence(
    registry: Registry, clock: ManualClock
) -> None:
    member = registry.register(verifier("v1"))
    clock.advance(0.5)
    registry.on_heartbeat(member, Heartbeat())
    clock.advance(2.6)  # stopped: heartbeats wait in its sockets
    assert registry.sweep(late_s=2.2) == ()
    clock.advance(1.7)  # and the member really is silent now
    assert registry.sweep() == (member,)


def test_nobody_is_heard_in_the_future(registry: Registry, clock: ManualClock) -> None:
    member = registry.register(verifier("v1"))
    registry.on_heartbeat(member, Heartbeat())
    registry.sweep(late_s=5.0)
    clock.advance(2.1)
    assert registry.sweep() == (member,)


def test_what_a_rank_said_before_it_was_taken_for_lost_does_not_bring_it_back(registry: Registry) -> None:
    here, lost = (registry.register(replace(verifier(f"v{rank}"), group=GroupRank("g", rank, 2))) for rank in range(2))
    registry.remove(lost, "it was silent for 9.0 s")
    registry.on_wave_report(lost, WaveReport(1))
    assert here.closed_because == "a group of 2 ranks lacks rank 1"
    registry.register(lost.who)
    assert not here.closed_because


def ranks(registry: Registry, *numbers: int, size: int = 2) -> list[MemberState]:
    return [registry.register(replace(verifier(f"v{rank}"), group=GroupRank("g", rank, size))) for rank in numbers]


def group_of(member: MemberState) -> Group:
    assert member.group is not None
    return member.group


def pass_time(registry: Registry, clock: ManualClock, seconds: float) -> None:
    """Nobody is silent meanwhile."""
    for _ in range(round(seconds)):
        clock.advance(1.0)
        for member in (*registry.verifiers, *registry.drafters):
            registry.on_heartbeat(member, Heartbeat())
        registry.sweep()


LONG_S = PATIENCE * 2.0


def test_a_rank_that_says_late_that_it_drains_does_not_take_its_group_with_it(registry: Registry) -> None:
    _, lost = ranks(registry, 0, 1)
    registry.remove(lost, "it was silent for 9.0 s")
    registry.drain(lost)
    back = registry.register(lost.who)
    assert not back.closed_because and not group_of(back).leaving


def test_a_group_that_has_yet_to_be_whole_is_waited_for_longer_than_one_that_was(
    registry: Registry, clock: ManualClock
) -> None:
    (first,) = ranks(registry, 0)
    pass_time(registry, clock, FIRST_PATIENCE * LONG_S)
    assert group_of(first).wave == 0, "its second rank may come late"
    ranks(registry, 1)
    pass_time(registry, clock, FIRST_PATIENCE * LONG_S)
    assert group_of(first).wave == 0


def test_a_group_that_does_not_become_whole_is_woken_in_the_end(registry: Registry, clock: ManualClock) -> None:
    (first,) = ranks(registry, 0)
    pass_time(registry, clock, FIRST_PATIENCE * LONG_S + 1)
    assert group_of(first).wave == 1
    registry.on_wave_report(first, WaveReport(1, parked=True))
    pass_time(registry, clock, LONG_S + 1)
    assert group_of(first).wave == 2


def test_ranks_of_a_group_that_an_earlier_coordinator_saw_whole_are_woken_after_a_while_and_again(
    registry: Registry, clock: ManualClock
) -> None:
    (here,) = ranks(registry, 0)
    registry.on_wave_report(here, WaveReport(7, parked=True))
    pass_time(registry, clock, LONG_S)
    assert group_of(here).wave == 7, "the other may be about to come"
    pass_time(registry, clock, 1)
    assert group_of(here).wave == 8
    registry.on_wave_report(here, WaveReport(8, parked=True))
    pass_time(registry, clock, LONG_S)
    assert group_of(here).wave == 8
    pass_time(registry, clock, 1)
    assert group_of(here).wave == 9


def test_a_group_whose_last_rank_comes_late_is_not_woken(registry: Registry, clock: ManualClock) -> None:
    here, late = ranks(registry, 0, 1)
    pass_time(registry, clock, 2 * LONG_S)
    for member in (here, late):
        registry.remove(member, "its stream broke")
    waves = group_of(here).wave
    (here,) = ranks(registry, 0)
    pass_time(registry, clock, LONG_S)
    ranks(registry, 1)
    pass_time(registry, clock, 2 * LONG_S)
    assert group_of(here).wave == waves


def test_a_group_that_leaves_is_not_woken_and_not_forgotten_at_once_when_its_last_rank_is_gone(
    registry: Registry, clock: ManualClock
) -> None:
    first, second = ranks(registry, 0, 1)
    registry.drain(first)
    for member in (first, second):
        registry.remove(member, "its stream broke")
    pass_time(registry, clock, LONG_S)
    (back,) = ranks(registry, 0)
    assert group_of(back).leaving, "it is told to drain"
    pass_time(registry, clock, 2 * LONG_S)
    assert group_of(back).wave == 0
    registry.remove(back, "it left")
    pass_time(registry, clock, LONG_S + 1)
    (new,) = ranks(registry, 0)
    assert not group_of(new).leaving


def test_promises_are_kept_while_more_sessions_are_on_their_way_to_a_verifier_than_made_one(
    registry: Registry,
) -> None:
    member = registry.register(verifier("v1"))
    member.running, member.placed.reserved = 5, [3, 4]
    registry.on_heartbeat(member, Heartbeat(Load(sessions=2)))
    assert member.placed.reserved == [3, 4]
    registry.on_heartbeat(member, Heartbeat(Load(sessions=4)))
    assert member.placed.reserved == [4]

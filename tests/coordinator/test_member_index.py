"""What is kept up about members, against a look at each of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from specsplit.clock import ManualClock
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import AdaptersReport, GroupRank, Heartbeat, Register
from specsplit.values import Adapter, DrafterInfo, DrafterKind, Load, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.placement import candidates, free_places
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.compatibility import compatible_info, having
from specsplit_coordinator.members.member_state import MemberState, kind_of
from specsplit_coordinator.members.registry import Registry
from specsplit_coordinator.members.urn import Urn

TARGET = Vocabulary(50, "aa")
CONTEXTS = (256, 512)
ADAPTERS = Adapter("a", "0a"), Adapter("b", "0b"), Adapter("c", "0c")
LOST_AFTER_S = 2.0


class IndexedMembers(RuleBasedStateMachine):
    """Members come, go, drain, report, fail, and get sessions, in any order."""

    there = Bundle("there")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.registry = Registry(TARGET, self.clock, LOST_AFTER_S)
        self.names = 0

    @rule(
        target=there,
        context=st.sampled_from(CONTEXTS),
        places=st.integers(1, 3),
        adapters=st.lists(st.sampled_from(ADAPTERS), unique=True),
    )
    def verifier_joins(self, context: int, places: int, adapters: list[Adapter]) -> MemberState:
        return self.join(ModelInfo("toy", TARGET, context, adapters=tuple(adapters)), places)

    @rule(
        target=there,
        kind=st.sampled_from(DrafterKind),
        vocabulary=st.sampled_from((None, TARGET, Vocabulary(51))),
    )
    def drafter_joins(self, kind: DrafterKind, vocabulary: Vocabulary | None) -> MemberState:
        return self.join(DrafterInfo(kind, "", vocabulary, 512), 2)

    @rule(target=there, size=st.integers(2, 3), there=st.integers(1, 3))
    def group_joins(self, size: int, there: int) -> object:
        name = f"g{self.names}"
        ranks = [GroupRank(name, rank, size) for rank in range(min(size, there))]
        return multiple(*(self.join(ModelInfo("toy", TARGET, 512), 2, rank) for rank in ranks))

    def join(self, role: ModelInfo | DrafterInfo, places: int, group: GroupRank | None = None) -> MemberState:
        self.names += 1
        return self.registry.register(Register(f"m{self.names}", "a:1", role, places, group=group))

    @rule(target=there, member=consumes(there))
    def comes_back(self, member: MemberState) -> MemberState:
        self.registry.on_stream_ended(member, "it broke")
        return self.registry.register(member.who)

    @rule(member=there)
    def stream_ends(self, member: MemberState) -> None:
        self.registry.on_stream_ended(member, "it broke")

    @rule(member=there, adapters=st.lists(st.sampled_from(ADAPTERS), unique=True))
    def has_other_adapters(self, member: MemberState, adapters: list[Adapter]) -> None:
        if member.is_verifier:
            self.registry.on_adapters(member, AdaptersReport(tuple(adapters)))

    @rule(member=there)
    def drains(self, member: MemberState) -> None:
        self.registry.drain(member)

    @rule(
        member=there,
        sessions=st.integers(0, 4),
        coordinators=st.integers(0, 3),
        home=st.booleans(),
        page_size=st.sampled_from((0, 16)),
        prefixes=st.lists(st.integers(1, 6), unique=True, max_size=4),
    )
    def reports(
        self, member: MemberState, sessions: int, coordinators: int, home: bool, page_size: int, prefixes: list[int]
    ) -> None:
        load = Load(sessions, page_size=page_size)
        report = Heartbeat(load, prefixes=tuple(prefixes), coordinators=coordinators, home=home)
        self.registry.on_heartbeat(member, report)

    @rule(target=leases, member=there)
    def gets_a_session(self, member: MemberState) -> object:
        if not member.is_verifier:
            return multiple()
        return Lease(member, PlacementRequest(), lambda _: None)

    @rule(lease=leases, drafter=there)
    def session_gets_a_drafter(self, lease: Lease, drafter: MemberState) -> None:
        if not drafter.is_verifier:
            lease.hand_over(drafter)

    @rule(lease=leases)
    def answers(self, lease: Lease) -> None:
        lease.succeeded()

    @rule(lease=consumes(leases), failed=st.booleans())
    def session_ends(self, lease: Lease, failed: bool) -> None:
        if failed:
            lease.verifier.breaker.failed()
        lease.release()

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.registry.sweep()

    @invariant()
    def verifiers_are_as_a_look_at_each_finds_them(self) -> None:
        registry, index = self.registry, self.registry.index.verifiers
        members = {each.member_id for each in registry.members}
        taking = [each for each in registry.verifiers if not each.closed_because]
        assert {each.member_id for each in (*registry.verifiers, *registry.drafters)} == members
        there = index.choices.all
        assert {*there.open} == {*taking}
        assert {*there.with_room} == {each for each in taking if each.has_free_place}
        assert {*there.at_home} == {each for each in there.with_room if each.at_home}
        assert (index.sessions, index.own, index.places) == (
            sum(each.sessions for each in taking),
            sum(each.running for each in taking),
            sum(each.who.max_sessions for each in taking),
        )
        assert {*registry.served} == {each.who.role for each in registry.known_verifiers}
        assert index.page_sizes == Counter(each.load.page_size for each in taking if each.load.page_size)
        for adapter in ADAPTERS:
            choices, have = index.choices.having(adapter), {*having(registry.verifiers, adapter)}
            assert {*choices.open} == {*there.open} & have
            assert {*choices.with_room} == {*there.with_room} & have
            assert {*choices.at_home} == {*there.at_home} & have
        assert {*index.failing} == {each for each in taking if each.breaker.failures}

    @invariant()
    def free_places_are_their_sum(self) -> None:
        try:
            expected = sum(each.free_places for each in candidates(self.registry.verifiers))
        except Unavailable:
            expected = 0 if self.registry.awaited else math.inf
        try:
            assert free_places(self.registry) == expected
        except Unavailable:
            assert expected == math.inf

    @invariant()
    def the_model_is_the_one_with_the_shortest_context(self) -> None:
        known = [each.max_context for each in self.registry.known_verifiers]
        if known:
            assert self.registry.model().max_context == min(known)

    @invariant()
    def an_adapter_has_the_shortest_context_of_those_that_have_it(self) -> None:
        for adapter in ADAPTERS:
            contexts = [each.max_context for each in having(self.registry.known_verifiers, adapter)]
            try:
                assert self.registry.model(adapter.name).max_context == min(contexts, default=0)
            except (InvalidRequest, Unavailable):
                assert not contexts

    @invariant()
    def coordinators_are_as_many_as_a_member_has_said(self) -> None:
        known = (*self.registry.known_verifiers, *self.registry.drafters)
        assert self.registry.coordinators == max(1, *(each.report.coordinators for each in known), 1)

    @invariant()
    def holders_of_pages_are_those_that_have_reported_them(self) -> None:
        taking = [each for each in self.registry.verifiers if not each.closed_because]
        for mark in range(1, 7):
            drawn = self.registry.index.verifiers.prefixes.draw((mark,), 99, Random(0))
            assert sorted(each.member_id for each in drawn) == sorted(
                each.member_id for each in taking if mark in each.prefixes
            )

    @invariant()
    def drafters_are_as_a_look_at_each_finds_them(self) -> None:
        registry, index = self.registry, self.registry.index.drafters
        usable = [each for each in registry.drafters if compatible_info(each, TARGET) and not each.closed_because]
        assert [*registry.usable_drafters] == usable
        for kind in DrafterKind:
            of_kind = {each for each in usable if kind_of(each) is kind}
            with_room = {each for each in of_kind if each.has_free_place}
            assert {*index.all((kind,))} == of_kind and index.count((kind,)) == len(of_kind)
            assert {*index.draw((kind,), 99, Random(0))} == (with_room or of_kind)


TestIndexedMembers = IndexedMembers.TestCase
TestIndexedMembers.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_draw_has_no_item_twice_and_all_are_as_likely() -> None:
    urn, chance, counts = Urn[int](), Random(7), Counter[int]()
    for item in range(10):
        urn.hold(item, held=True)
    for item in (9, 0, 4):
        urn.hold(item, held=False)
        urn.hold(item, held=False)
    urn.hold(1, held=True)
    for _ in range(7000):
        drawn = urn.draw(3, chance)
        assert len({*drawn}) == 3
        counts.update(drawn)
    assert sorted(counts) == [1, 2, 3, 5, 6, 7, 8] and len(urn) == 7
    assert all(count == pytest.approx(3000, rel=0.1) for count in counts.values())
    assert sorted(urn.draw(8, chance)) == [1, 2, 3, 5, 6, 7, 8]


def test_the_pages_looked_for_are_the_last_that_anybody_has() -> None:
    registry = Registry(TARGET, ManualClock(), LOST_AFTER_S)
    who = Register("v1", "a:1", ModelInfo("toy", TARGET, 512), 2)
    one, two = registry.register(who), registry.register(replace(who, member_id="v2"))
    registry.on_heartbeat(one, Heartbeat(Load(page_size=16), prefixes=(1, 2)))
    registry.on_heartbeat(two, Heartbeat(Load(page_size=16), prefixes=(1,)))
    prefixes, chance = registry.index.verifiers.prefixes, Random(0)
    assert prefixes.draw((1, 2, 3), 4, chance) == [one]
    assert {*prefixes.draw((1, 3), 4, chance)} == {one, two} and len(prefixes.draw((1,), 1, chance)) == 1
    assert prefixes.draw((3,), 4, chance) == []


def test_a_verifier_is_no_longer_failing_as_soon_as_a_session_has_its_first_event() -> None:
    registry = Registry(TARGET, ManualClock(), LOST_AFTER_S)
    member = registry.register(Register("v1", "a:1", ModelInfo("toy", TARGET, 512), 2))
    lease = Lease(member, PlacementRequest(), lambda _: None)
    member.breaker.failed()
    assert [*registry.index.verifiers.failing] == [member]
    lease.succeeded()
    assert [*registry.index.verifiers.failing] == []

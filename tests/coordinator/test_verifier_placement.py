"""Which verifiers are looked at for a session, and how busy they are taken to be where coordinators share them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.errors import Unavailable
from specsplit.membership import GroupRank, Heartbeat, Register
from specsplit.prefix import first_marks
from specsplit.values import (
    Adapter,
    DrafterInfo,
    DrafterKind,
    DrafterReport,
    Load,
    ModelInfo,
    SpeculationReport,
    Vocabulary,
)
from specsplit_coordinator.cluster import verifier_placement
from specsplit_coordinator.cluster.drafter_placement import FEW as FEW_DRAFTERS
from specsplit_coordinator.cluster.drafter_placement import DrafterPlacement
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.lease import Lease
from specsplit_coordinator.cluster.outlook import Outlook
from specsplit_coordinator.cluster.placement import choose_verifier
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.cluster.verifier_placement import FEW, KNOWN, VerifierPlacement
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.registry import Registry

TARGET = Vocabulary(50, "aa")
MANY = 200
WANTED = PlacementRequest(range(100), 50)


def make_registry(clock: ManualClock | None = None) -> Registry:
    return Registry(TARGET, clock or ManualClock(), 2.0)


def join(
    registry: Registry, name: str, places: int = 4, context: int = 2048, group: GroupRank | None = None
) -> MemberState:
    return registry.register(Register(name, "a:1", ModelInfo("toy", TARGET, context), places, group=group))


def report(
    registry: Registry,
    member: MemberState,
    sessions: int = 0,
    *,
    coordinators: int = 1,
    home: bool = True,
    waiting: int = 0,
    free_pages: int = 900,
    prefixes: tuple[int, ...] = (),
) -> None:
    load = Load(sessions, waiting, free_pages, 1000, page_size=16)
    registry.on_heartbeat(member, Heartbeat(load, prefixes=prefixes, coordinators=coordinators, home=home))


def many(registry: Registry, count: int = MANY) -> list[MemberState]:
    members = [join(registry, f"v{number}") for number in range(count)]
    for member in members:
        report(registry, member)
    return members


def named(member: MemberState | None) -> str | None:
    return None if member is None else member.member_id


verifiers_that_differ = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(0, 4), st.integers(0, 1), st.sampled_from((0, 5, 900)), st.booleans(),
        st.booleans(), st.integers(1, 3), st.booleans(), st.sampled_from((120, 2048)), st.booleans(),
    ),
    max_size=FEW,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(verifiers_that_differ, st.booleans(), st.sampled_from((None, 2.0)), st.integers())
def test_where_there_are_few_the_choice_is_that_among_all(
    there: list[tuple[int, int, int, int, bool, bool, int, bool, int, bool]],
    patient: bool,
    sound_s: float | None,
    seed: int,
) -> None:
    registry = make_registry()
    marks = first_marks(range(100), 16)
    for number, each in enumerate(there):
        running, reported, waiting, pages, failed, drains, coordinators, home, context, knows = each
        group = GroupRank(f"g{number}", 0, 1) if drains and failed else None
        member = join(registry, f"v{number}", context=context, group=group)
        member.running = running
        prefixes = marks[:number] if knows else ()
        report(
            registry, member, reported, coordinators=coordinators, home=home, waiting=waiting, free_pages=pages, prefixes=prefixes
        )  # fmt: skip
        if failed:
            member.breaker.failed()
        if drains and not failed:
            registry.drain(member)
    failed_on = [f"v{number}" for number, each in enumerate(there) if each[0] == 1]
    wanted = PlacementRequest(range(100), 50, failed_on=failed_on)
    placement = VerifierPlacement(registry, Random(seed))
    outlook = Outlook.of(registry.index.verifiers)
    try:
        expected = choose_verifier(registry.verifiers, wanted, sound_s=sound_s, patient=patient, outlook=outlook)
    except Unavailable as error:
        with pytest.raises(Unavailable, match=str(error).partition(":")[0]):
            placement.choose(wanted, sound_s=sound_s, patient=patient)
    else:
        assert named(placement.choose(wanted, sound_s=sound_s, patient=patient)) == named(expected)


def test_of_many_a_few_are_looked_at_and_one_with_room_is_taken() -> None:
    registry = make_registry()
    members = many(registry)
    for member in members:
        member.running = 4
    placement = VerifierPlacement(registry, Random(1))
    assert placement.choose(WANTED) is None, "all are full"
    members[77].running = 3
    assert placement.choose(WANTED) is members[77], "the only one with room"
    for member in members:
        member.running = 0
    chosen = {placement.choose(WANTED) for _ in range(400)}
    assert len(chosen) > MANY / 2, "of those that are alike any is taken"


def test_where_many_have_room_all_get_about_as_many() -> None:
    registry = make_registry()
    members = many(registry)
    placement = VerifierPlacement(registry, Random(1))
    for _ in range(2 * MANY):
        chosen = placement.choose(WANTED)
        assert chosen is not None
        Lease(chosen, WANTED, lambda _: None)
    assert {member.running for member in members} <= {1, 2, 3}
    assert sum(member.running == 2 for member in members) > MANY / 2


def test_of_many_that_have_an_adapter_a_few_are_looked_at_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, adapter, looked_at = make_registry(), Adapter("polite", "0a"), list[int]()
    for number in range(2 * MANY):
        info = ModelInfo("toy", TARGET, 2048, adapters=(adapter,) if number % 2 else ())
        report(registry, registry.register(Register(f"v{number}", "a:1", info, 4)), prefixes=tuple(WANTED.marks(16)))
    having = verifier_placement.having
    monkeypatch.setattr(
        verifier_placement, "having", lambda them, wanted: (looked_at.append(len(them)), having(them, wanted))[1]
    )
    placement, wanted = VerifierPlacement(registry, Random(1)), PlacementRequest(range(100), 50, adapter=adapter)
    held = [Lease(chosen, wanted, lambda _: None) for _ in range(4 * MANY) if (chosen := placement.choose(wanted))]
    assert len(held) == 4 * MANY, "they are full, and no session was turned away before"
    assert {lease.verifier.running for lease in held} == {4} and not any(
        each.running for each in registry.verifiers[::2]
    )
    assert placement.choose(wanted) is None
    assert max(looked_at) <= KNOWN


def test_of_many_those_that_have_the_beginning_of_the_text_are_looked_at() -> None:
    registry = make_registry()
    members, marks = many(registry), first_marks(range(100), 16)
    report(registry, members[3], prefixes=marks[:2])
    report(registry, members[9], prefixes=marks[:4])
    placement = VerifierPlacement(registry, Random(1))
    assert all(placement.choose(WANTED) is members[9] for _ in range(20))
    members[9].running = 3  # of 4
    assert all(placement.choose(WANTED) is not members[9] for _ in range(20)), "much busier than others"


def test_if_none_that_is_drawn_can_take_a_session_all_are_looked_at() -> None:
    registry, clock = make_registry(), ManualClock()
    many(registry)
    long = PlacementRequest(range(3000), 50)
    able = join(registry, "able", context=8192)
    able.running = 3
    placement = VerifierPlacement(registry, Random(1))
    assert placement.choose(long) is able
    able.running = 4
    assert placement.choose(long) is None, "it waits rather than be refused"
    registry.remove(able, "it left")
    assert placement.choose(long) is not None, "one says why not"
    with pytest.raises(Unavailable, match="can hold this session"):
        placement.choose(long, patient=True)
    assert clock.now() == 0


def test_of_many_none_is_taken_that_has_just_failed_or_whose_group_has() -> None:
    clock = ManualClock()
    registry = make_registry(clock)
    ranks = [join(registry, f"r{rank}", group=GroupRank("g", rank, 60)) for rank in range(60)]
    alone = many(registry, 60)
    for member in ranks:
        report(registry, member)
    for member in alone[::2]:
        member.breaker.failed()
    placement = VerifierPlacement(registry, Random(1))
    ranks[7].breaker.failed()
    again = {placement.choose(WANTED, sound_s=2.0, patient=True) for _ in range(300)}
    assert again <= {*alone[1::2]}
    fresh = {placement.choose(WANTED) for _ in range(300)}
    assert fresh <= {*alone[1::2], *ranks} - {ranks[7]} and fresh & {*ranks}
    clock.advance(2.1)
    assert {placement.choose(WANTED, sound_s=2.0, patient=True) for _ in range(300)} & {*ranks}


def test_of_many_one_with_pages_is_found_for_a_session_that_another_had_to_preempt() -> None:
    registry = make_registry()
    members = many(registry)
    for member in members[10:]:
        report(registry, member, free_pages=0)
    placement = VerifierPlacement(registry, Random(1))
    for member in members[10:]:
        member.running = 4
    assert placement.better(members[50], WANTED) in members[:10]


def test_busy_verifiers_elsewhere_count_what_others_have_placed_since_their_report() -> None:
    registry = make_registry()
    here, there = (join(registry, name, 32) for name in ("here", "there"))
    here.running = 10
    there.running = 2
    report(registry, here, 10, coordinators=4, home=True)
    report(registry, there, 14, coordinators=4, home=False)
    outlook = Outlook.of(registry.index.verifiers)
    assert outlook == Outlook(mean=24 / 64, others=12 / 12)
    assert (outlook.busy(here), outlook.busy(there)) == (10 / 32, 14 / 32)
    for member in (here, there):
        Lease(member, PlacementRequest(), lambda _: None)
    assert outlook.busy(here) == 11 / 32, "what is at home is counted here"
    assert outlook.busy(there) == (15 + 1) / 32, "another coordinator has placed one for each of one's own"
    assert Outlook(0.0, 50.0).busy(there) == (15 + 3) / 32, "as many as this one at most, each of the others"


def test_at_home_others_count_by_what_they_have_on_that_verifier() -> None:
    registry = make_registry()
    here = join(registry, "here", 32)
    here.running = 9
    report(registry, here, 15, coordinators=4, home=True)
    outlook = Outlook.of(registry.index.verifiers)
    assert outlook.busy(here) == 15 / 32
    Lease(here, PlacementRequest(), lambda _: None)
    assert outlook.busy(here) == (16 + 6 / 10) / 32, "another coordinator places six there for each ten from here"
    here.running = 1
    assert outlook.busy(here) == (7 + 3) / 32, "as many as this one at most, each of the others"


def test_one_at_home_is_preferred_until_it_is_half_a_session_above_the_mean() -> None:
    registry = make_registry()
    here, there = (join(registry, name, 32) for name in ("here", "there"))
    report(registry, here, 12, coordinators=2, home=True)
    report(registry, there, 2, coordinators=2, home=False)
    for mean, preferred in ((12 / 32, True), (11.5 / 32, True), (11.4 / 32, False)):
        outlook = Outlook(mean=mean)
        assert outlook.prefers(here) is preferred and not outlook.prefers(there)
        assert choose_verifier([there, here], outlook=outlook) is (here if preferred else there)
    report(registry, there, 2, coordinators=1)
    assert Outlook().prefers(there), "of one coordinator alone"


def test_of_many_drafters_those_that_served_the_verifier_and_some_of_each_kind_are_looked_at() -> None:
    registry = make_registry()
    asking = join(registry, "v")
    for number in range(2 * FEW_DRAFTERS):
        for kind in (DrafterKind.NGRAM, DrafterKind.EAGLE3):
            registry.register(Register(f"{kind}-{number}", "a:1", DrafterInfo(kind, "", None, 512), 1))
    scorer = DrafterScorer(registry, registry.clock)
    placement = DrafterPlacement(scorer, Random(1))
    eagles = {each for each in registry.drafters if each.member_id.startswith(DrafterKind.EAGLE3)}
    chosen = {placement.choose(registry, asking, None, TARGET, sampled=False) for _ in range(15)}
    assert len(chosen) > 1 and chosen <= eagles, "the better kind"
    for each in eagles:
        each.running = 1
    taken = placement.choose(registry, asking, "eagle3", TARGET, sampled=True)
    assert taken in eagles, "full ones are better than none"
    best = registry.drafters[0]
    brought = DrafterReport(best.member_id, steps=900.0, accepted=7.0)
    registry.on_heartbeat(asking, Heartbeat(speculation=SpeculationReport("fixed", 8, drafters=(brought,))))
    scored = DrafterPlacement(DrafterScorer(registry, registry.clock), Random(1))
    assert {scored.choose(registry, asking, None, TARGET, sampled=False) for _ in range(15)} == {best}

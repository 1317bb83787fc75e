"""Which verifier and which drafter a session gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specsplit.clock import ManualClock
from specsplit.errors import Unavailable
from specsplit.membership import Heartbeat, Register
from specsplit.prefix import first_marks
from specsplit.values import DrafterInfo, DrafterKind, Load, ModelInfo, Plan, SpeculationReport, Vocabulary, pages_held
from specsplit_coordinator.cluster.drafter_placement import choose_drafter
from specsplit_coordinator.cluster.drafter_scorer import DrafterScorer
from specsplit_coordinator.cluster.placement import (
    better_verifier,
    choose_verifier,
    has_other,
    pages_known,
    pages_lacking,
)
from specsplit_coordinator.cluster.placement_request import PlacementRequest
from specsplit_coordinator.members.breaker import FIRST_COOL_DOWN_S, Breaker
from specsplit_coordinator.members.member_state import Latest, MemberState, Placed
from specsplit_coordinator.members.registry import Registry

TARGET = Vocabulary(50, "aa")


def verifier(
    name: str, running: int = 0, reported: int = 0, draining: bool = False, breaker: Breaker | None = None
) -> MemberState:
    who = Register(name, "a:1", ModelInfo("toy", TARGET, 2048), 4)
    return MemberState(
        who,
        0.0,
        breaker or Breaker(ManualClock()),
        Latest(Heartbeat(Load(sessions=reported))),
        draining,
        Placed(running),
    )


def drafter(
    name: str,
    kind: DrafterKind,
    running: int = 0,
    vocabulary: Vocabulary | None = TARGET,
    draining: bool = False,
) -> MemberState:
    who = Register(name, "a:1", DrafterInfo(kind, "", vocabulary, 512), 4)
    return MemberState(who, 0.0, Breaker(ManualClock()), Latest(Heartbeat()), draining, Placed(running))


NGRAM, STANDALONE, EAGLE3 = DrafterKind.NGRAM, DrafterKind.STANDALONE, DrafterKind.EAGLE3


def chosen(drafters: list[MemberState], wish: str | None = None, cooling_down: tuple[str, ...] = ()) -> str | None:
    clock = ManualClock()
    scorer = DrafterScorer(Registry(TARGET, clock, 1.0), clock)
    asking = verifier("v")

    def score(drafter: MemberState) -> float:
        return scorer.score(asking, drafter, more=1, sampled=False)

    member = choose_drafter(drafters, wish, TARGET, cooling_down, score)
    return None if member is None else member.member_id


def test_the_least_busy_verifier_is_taken_by_placed_or_reported_sessions() -> None:
    member = choose_verifier(
        [verifier("a", running=2), verifier("b", reported=1), verifier("c", running=1, reported=3)]
    )
    assert member is not None
    assert member.member_id == "b"


def test_full_and_draining_verifiers_are_passed_over() -> None:
    assert choose_verifier([verifier("a", running=4), verifier("b", draining=True)]) is None


def test_without_any_verifier_that_takes_sessions_the_caller_is_told() -> None:
    with pytest.raises(Unavailable, match="no verifier has joined"):
        choose_verifier([])
    with pytest.raises(Unavailable, match="no verifier takes sessions: a is draining"):
        choose_verifier([verifier("a", draining=True)])


N, S = drafter("n", NGRAM), drafter("s", STANDALONE)
FULL_S, FULL_E = drafter("s", STANDALONE, running=4), drafter("e", EAGLE3, running=4)


@pytest.mark.parametrize(
    ("there", "wish", "cooling_down", "expected"),
    [
        pytest.param([N, S], None, "", "s", id="standalone is better than ngram"),
        pytest.param([N], None, "", "n", id="ngram is better than nothing"),
        pytest.param([], None, "", None, id="nothing is there"),
        pytest.param([N, FULL_S], None, "", "n", id="a full one is passed over if another has room"),
        pytest.param([FULL_S], None, "", "s", id="a full one is better than none"),
        pytest.param([FULL_E, N, S], None, "", "s", id="the best of those with room"),
        pytest.param(
            [drafter("a", STANDALONE, 2), drafter("b", STANDALONE, 1)], None, "", "b", id="of one kind the least busy"
        ),
        pytest.param([S, N], None, "s", "n", id="one that cools down is the last choice"),
        pytest.param([S], None, "s", "s", id="and is one"),
        pytest.param([N, S], "none", "", None, id="a wish for none"),
        pytest.param([drafter("s", STANDALONE, vocabulary=Vocabulary(51))], None, "", None, id="another vocabulary"),
        pytest.param([drafter("n", NGRAM, draining=True)], None, "", None, id="on its way out"),
        pytest.param([drafter("n", NGRAM, vocabulary=None)], None, "", "n", id="one that fits any vocabulary"),
    ],
)
def test_the_drafter_of_a_session(
    there: list[MemberState], wish: str | None, cooling_down: str, expected: str | None
) -> None:
    assert chosen(there, wish, tuple(cooling_down)) == expected


def test_a_wish_for_ngram_is_met_by_a_verifier_that_looks_up_and_no_other_wish_is() -> None:
    assert choose_drafter([], "ngram", TARGET, looks_up=True) is None
    assert choose_drafter([N], "ngram", TARGET, looks_up=True) is N, "a drafter that is there comes first"
    for wish, looks_up in (("ngram", False), ("standalone", True)):
        with pytest.raises(Unavailable):
            choose_drafter([], wish, TARGET, looks_up=looks_up)


def test_without_a_wish_heads_come_first_and_eagle3_before_the_others() -> None:
    there = [drafter(kind.value, kind) for kind in DrafterKind]
    order: list[str] = []
    while there:
        order.append(chosen(there) or "")
        there = [member for member in there if member.member_id != order[-1]]
    assert order == ["eagle3", "dflash", "dspark", "multi_layer_eagle", "eagle", "standalone", "ngram"]


@pytest.mark.parametrize("wish", DrafterKind)
def test_a_wish_for_a_kind_gets_that_kind_however_busy_it_is(wish: DrafterKind) -> None:
    there = [drafter(kind.value, kind, running=4 * (kind is wish)) for kind in DrafterKind]
    assert chosen(there, wish.value) == wish.value


def test_a_drafter_is_full_by_what_it_says_too_since_verifiers_replace_lost_ones_by_themselves() -> None:
    full, other = drafter("full", STANDALONE), drafter("other", NGRAM)
    full.update(Heartbeat(Load(sessions=4)))
    assert not full.has_free_place and chosen([full, other]) == "other"


def test_a_known_kind_that_is_not_there_is_refused_with_what_is_there() -> None:
    with pytest.raises(Unavailable, match="the cluster has no drafters"):
        chosen([], "ngram")
    with pytest.raises(Unavailable, match=r"no standalone drafter .* has 1 ngram, 1 standalone \(another vocabulary\)"):
        chosen([drafter("n", NGRAM), drafter("s", STANDALONE, vocabulary=Vocabulary(9))], "standalone")


def test_a_verifier_that_has_just_failed_gets_nothing_while_another_is_sound_even_if_that_is_full() -> None:
    clock = ManualClock()
    bad, good = verifier("bad", breaker=Breaker(clock)), verifier("good", running=3)
    assert choose_verifier([bad, good]) is bad
    assert has_other([bad, good], bad)
    bad.breaker.failed()
    assert choose_verifier([bad, good]) is good
    good.running = 4
    assert choose_verifier([bad, good]) is None
    clock.advance(FIRST_COOL_DOWN_S)
    assert choose_verifier([bad, good]) is bad


def test_verifiers_that_have_all_failed_are_tried_all_the_same() -> None:
    one, two = verifier("one", running=1), verifier("two")
    for member in (one, two):
        member.breaker.failed()
    assert choose_verifier([one, two]) is two
    assert not has_other([one, two], one)


def holding(name: str, *, free: int, waiting: int = 0, running: int = 0, total: int = 1000) -> MemberState:
    """A verifier with pages of 16 tokens."""
    load = Load(running + waiting, waiting, free, total, page_size=16)
    member = verifier(name, running=running)
    member.latest = Latest(Heartbeat(load))
    return member


def test_one_without_pages_is_not_chosen_over_one_that_has_them() -> None:
    full, roomy = holding("full", free=0, waiting=1), holding("roomy", free=900, running=3)
    wanted = PlacementRequest(range(100), 50)
    assert wanted.pages(roomy.load) == 10
    assert choose_verifier([full, roomy], wanted) is roomy
    assert better_verifier([full, roomy], full, wanted) is roomy
    assert better_verifier([full, roomy], roomy, wanted) is None


def test_a_text_longer_than_the_pool_fits_where_a_session_holds_a_window_of_it() -> None:
    whole, windowed = holding("whole", free=40, total=40), holding("windowed", free=9, total=10, running=3)
    windowed.latest = Latest(Heartbeat(replace(windowed.load, kv_window=64)))
    wanted = PlacementRequest(range(1000), 500, num_draft_tokens=40)
    assert (wanted.pages(whole.load), wanted.max_pages(whole.load, 8)) == (79, 97)
    assert (wanted.pages(windowed.load), wanted.max_pages(windowed.load, 8)) == (8, 8)
    assert choose_verifier([whole, windowed], wanted) is windowed


def test_a_session_waits_for_window_pages_too_where_only_some_layers_have_a_window() -> None:
    mixed, wanted = holding("mixed", free=99), PlacementRequest([1] * 100, 60, 16)
    mixed.latest = Latest(Heartbeat(replace(mixed.load, layer_window=64, window_pages=40, free_window_pages=7)))
    assert pages_held(160, 16, 16, 64) == wanted.window_pages(mixed.load) == 6
    assert pages_lacking(mixed, wanted) == 0
    mixed.latest = Latest(Heartbeat(replace(mixed.load, free_window_pages=4)))
    assert pages_lacking(mixed, wanted) == 2
    mixed.latest = Latest(Heartbeat(replace(mixed.load, window_pages=5)))
    assert pages_lacking(mixed, wanted) == 1, "it may take all that there are"


def test_what_was_placed_since_the_last_heartbeat_counts_against_free_pages() -> None:
    one, other = holding("one", free=15), holding("other", free=10, running=3)
    wanted = PlacementRequest(range(100), 50)
    assert choose_verifier([one, other], wanted) is one
    one.placed.reserved += [10]
    assert choose_verifier([one, other], wanted) is other


def test_a_heartbeat_forgets_no_session_that_was_placed_while_it_was_on_its_way() -> None:
    member = holding("v", free=15, running=3)
    member.placed.reserved += [4, 5, 6]
    member.update(Heartbeat(Load(1, 0, 15, 1000, page_size=16)))
    assert member.reserved_pages == 11, "it counts one of the three"
    member.update(Heartbeat(Load(3, 0, 4, 1000, page_size=16)))
    assert member.reserved_pages == 0


def test_a_session_must_fit_with_what_is_drafted_for_it_as_a_verifier_sees_it() -> None:
    exact, larger = holding("exact", free=10, total=10), holding("larger", free=0, total=11)
    wanted = PlacementRequest(range(100), 60)
    assert choose_verifier([exact, larger], wanted) is exact, "nothing was said of drafts"
    exact.latest = Latest(replace(exact.report, plan=Plan(num_draft_tokens=8)))
    assert choose_verifier([exact, larger], wanted) is larger
    assert choose_verifier([exact, larger], PlacementRequest(range(100), 60, 0)) is exact, "its request wants none"
    exact.latest = Latest(
        replace(exact.report, plan=Plan(num_draft_tokens=1), speculation=SpeculationReport("goodput", 32))
    )
    assert choose_verifier([exact, larger], wanted) is larger, "what a controller may come to is what counts"


def test_a_pool_that_can_never_hold_a_session_is_no_choice_where_another_can() -> None:
    small, large = holding("small", free=50, total=50), holding("large", free=0, waiting=2)
    wanted = PlacementRequest(range(100), 800)
    assert choose_verifier([small, large], wanted) is large
    large.running = 4
    assert choose_verifier([small, large], wanted) is None, "it waits rather than be refused"
    assert choose_verifier([small], wanted) is small, "which says why not"
    with pytest.raises(Unavailable, match="no verifier that is there can hold this session"):
        choose_verifier([small], wanted, patient=True)


def test_a_context_that_is_too_short_is_as_bad_as_a_pool_that_is_too_small() -> None:
    short, long = verifier("short"), verifier("long", running=3)
    short.who = replace(short.who, role=ModelInfo("toy", TARGET, 512))
    wanted = PlacementRequest(range(500), 13)
    assert choose_verifier([short, long], wanted) is long
    assert choose_verifier([short], PlacementRequest(range(500), 12), patient=True) is short
    with pytest.raises(Unavailable, match="no verifier that is there can hold this session"):
        choose_verifier([short], wanted, patient=True)


def test_a_session_that_fits_but_for_drafts_that_a_controller_may_come_to_is_not_kept_waiting() -> None:
    exact, wanted = holding("exact", free=10, total=10), PlacementRequest(range(100), 52)
    exact.latest = Latest(
        replace(exact.report, plan=Plan(num_draft_tokens=8), speculation=SpeculationReport("goodput", 32))
    )
    assert choose_verifier([exact], wanted, patient=True) is exact
    with pytest.raises(Unavailable, match="can hold this session"):
        choose_verifier([exact], PlacementRequest(range(100), 53), patient=True)


def test_a_preempted_session_moves_to_no_pool_that_cannot_hold_all_of_it() -> None:
    big, small = holding("big", free=0), holding("small", free=50, total=50)
    assert better_verifier([big, small], big, PlacementRequest(range(100), 800)) is None
    assert better_verifier([big, small], big, PlacementRequest(range(100))) is None, "nobody knows how long it gets"
    assert better_verifier([big, small], big, PlacementRequest(range(100), 300)) is small
    small.who = replace(small.who, role=ModelInfo("toy", TARGET, 399))
    assert better_verifier([big, small], big, PlacementRequest(range(100), 300)) is None


def test_who_lost_a_verifier_is_told_if_all_have_just_failed() -> None:
    one = verifier("one")
    one.breaker.failed()
    assert choose_verifier([one]) is one
    with pytest.raises(Unavailable, match="every verifier that takes sessions has just failed"):
        choose_verifier([one], sound_s=2.0)


def test_of_pages_whose_size_a_verifier_has_not_said_none_are_known() -> None:
    text, untold, knows = range(100), verifier("untold"), holding("knows", free=99)
    for member in (untold, knows):
        member.latest = Latest(replace(member.report, prefixes=first_marks(text, 16)))
    assert untold.load.page_size == 0 == pages_known(untold, PlacementRequest(text))
    assert choose_verifier([untold, knows], PlacementRequest(text)) is knows


def test_then_the_shortest_queue_then_the_beginning_of_the_text_then_load() -> None:
    text = range(100)
    knows, queues, idle = holding("a", free=99, running=1), holding("b", free=99, waiting=1), holding("c", free=99)
    queues.latest = Latest(replace(queues.report, prefixes=first_marks(text, 16)))
    assert choose_verifier([knows, queues, idle], PlacementRequest(text)) is idle
    knows.latest = Latest(replace(knows.report, prefixes=first_marks(text, 16)[:2]))
    assert pages_known(knows, PlacementRequest(text)) == 2
    assert choose_verifier([knows, queues, idle], PlacementRequest(text)) is knows
    assert choose_verifier([knows, queues, idle], PlacementRequest(range(1, 100))) is idle
    knows.running = 3  # of 4
    assert choose_verifier([knows, queues, idle], PlacementRequest(text)) is idle, "much busier"

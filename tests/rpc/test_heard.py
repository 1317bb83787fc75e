"""What several coordinators say, as one: rosters united, the latest order in force, waves begun once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsplit.membership import Directive, Drain, PlanOrder, Registered, Roster, StartWave, TracingOrder
from specsplit.rpc.heard import Callbacks, Heard, united
from specsplit.values import Endpoint, PlanChanges, TraceChanges

NAMES = st.sampled_from("abcd")
rosters = st.lists(st.builds(Endpoint, NAMES, st.sampled_from(["x:1", "y:2"])), unique_by=lambda each: each.member_id)


class Member:
    """Keeps the last that it was called with."""

    def __init__(self) -> None:
        self.roster: Roster | None = None
        self.plan: PlanOrder | None = None
        self.traced: list[TraceChanges] = []
        self.waves: list[int] = []
        self.drained = 0
        self.heard = Heard(
            Callbacks(
                roster=lambda roster: setattr(self, "roster", roster),
                plan=lambda plan: setattr(self, "plan", plan),
                tracing=self.traced.append,
                start_wave=self.waves.append,
                drain=self._on_drain,
            )
        )

    def _on_drain(self) -> None:
        self.drained += 1

    def told(self, coordinator: str, *directives: Directive) -> Member:
        for directive in directives:
            self.heard.take(coordinator, directive)
        return self


def roster(*names: str, at: str = "x:1") -> Roster:
    return Roster(tuple(Endpoint(name, at) for name in names))


@given(st.lists(rosters.map(lambda each: Roster(tuple(each))), max_size=4))
def test_the_union_has_every_drafter_once_as_the_latest_roster_with_it_has_it(said: list[Roster]) -> None:
    whole = united(enumerate(said))
    names = [drafter.member_id for drafter in whole.drafters]
    assert sorted(names) == sorted({drafter.member_id for each in said for drafter in each.drafters})
    for drafter in whole.drafters:
        having = [each for each in said if drafter.member_id in {other.member_id for other in each.drafters}]
        assert drafter in having[-1].drafters
    if said:
        assert whole.drafters[: len(said[0].drafters)] == tuple(
            next(each for each in whole.drafters if each.member_id == first.member_id) for first in said[0].drafters
        )


@given(st.lists(rosters.map(lambda each: Roster(tuple(each))), min_size=1, max_size=5))
def test_of_one_coordinator_its_latest_roster_counts_as_it_is(said: list[Roster]) -> None:
    assert Member().told("A", *said).roster == said[-1]


def test_a_drafter_that_one_coordinator_has_lost_sight_of_stays_while_another_has_it() -> None:
    member = Member().told("A", roster("a", "b")).told("B", roster("b", "c"))
    assert member.roster == roster("a", "b", "c")
    assert member.told("A", roster("b")).roster == roster("b", "c")
    assert member.told("B", roster()).roster == roster("b")


def test_the_roster_of_a_coordinator_that_is_away_counts_only_while_there_is_no_other() -> None:
    member = Member().told("A", roster("a"))
    member.heard.leaves("A")
    assert member.roster == roster("a"), "it goes on with the drafters that it has"
    assert member.told("B", Registered(50), roster("b")).roster == roster("b")
    assert member.told("A", Registered(50), roster("a")).roster == roster("b", "a")
    member.heard.leaves("B")
    assert member.roster == roster("a")


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 9)), min_size=1, max_size=8))
def test_of_the_last_words_of_all_coordinators_the_latest_order_holds(said: list[tuple[str, int]]) -> None:
    member = Member()
    for coordinator, when in said:
        member.told(coordinator, PlanOrder(PlanChanges(topk=1 + when), ordered_ms=when))
    latest = max(dict(said).values())
    assert member.plan == PlanOrder(PlanChanges(topk=1 + latest), ordered_ms=latest)


def test_a_coordinator_that_was_told_nothing_leaves_the_order_of_another_alone() -> None:
    member = Member().told("A", order := PlanOrder(PlanChanges(topk=2), ordered_ms=7)).told("B", PlanOrder())
    assert member.plan == order
    assert member.told("A", PlanOrder()).plan == PlanOrder(), "A was started again: nobody has an order"


def test_the_orders_of_a_coordinator_hold_while_it_is_away_and_not_once_it_is_gone() -> None:
    member = Member().told("B", PlanOrder(), TracingOrder())
    member.told("A", PlanOrder(PlanChanges(topk=2), ordered_ms=7), TracingOrder(TraceChanges(level=3), 7))
    member.heard.leaves("A")
    assert member.plan == PlanOrder(PlanChanges(topk=2), ordered_ms=7)
    member.heard.forget("A")
    assert (member.plan, member.traced[-1]) == (PlanOrder(), TraceChanges())


def test_waves_and_drains_are_passed_on_whoever_says_them() -> None:
    member = Member().told("A", StartWave(1)).told("B", StartWave(1), Drain())
    assert (member.waves, member.drained) == ([1, 1], 1)


def test_what_concerns_nobody_is_passed_by() -> None:
    heard, everything = Heard(Callbacks()), [roster("a"), PlanOrder(), TracingOrder(), StartWave(1), Drain()]
    for directive in everything:
        heard.take("A", directive)
    heard.forget("A")

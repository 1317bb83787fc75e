"""What an operator changes in a running cluster: who is told, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import Incompatible, InvalidRequest
from specsplit.membership import PlanInForce, PlanOrder, Register, Registered, Roster, TracingInForce, TracingOrder
from specsplit.values import Adaptive, Control, Plan, PlanChanges, TraceChanges, TraceScope
from specsplit_coordinator.members.order_log import NOT_ASKED
from specsplit_coordinator.members.orders import Orders

from .conftest import Cluster
from .test_join import NGRAM, Member, verifier

SMALL = st.none() | st.integers(1, 60)
plans = st.builds(PlanChanges, SMALL, SMALL, SMALL, SMALL, st.none() | st.booleans())


@pytest.fixture
async def member(cluster: Cluster) -> AsyncIterator[Member]:
    member = Member(cluster.address)
    yield member
    await member.hang_up()


controls = st.builds(Control, st.none() | st.sampled_from(Adaptive), st.none() | st.integers(1, 256))


@given(st.lists(controls, max_size=5), controls)
def test_of_several_orders_the_last_to_name_a_controller_or_a_bound_holds(
    earlier: list[Control], last: Control
) -> None:
    orders = Orders()
    for control in earlier:
        orders.change_plan(PlanChanges(), control)
    adaptive = next((each.adaptive for each in reversed(earlier) if each.adaptive is not None), None)
    bound = next((each.max_draft_tokens for each in reversed(earlier) if each.max_draft_tokens is not None), None)
    assert orders.control == Control(adaptive, bound)
    orders.change_plan(PlanChanges(), last, reset=True)
    assert orders.control == last


@given(st.lists(plans, max_size=5), plans)
def test_changes_add_up_to_the_same_as_one_after_the_other_and_a_reset_leaves_the_last_alone(
    changes: list[PlanChanges], last: PlanChanges
) -> None:
    orders, plan = Orders(), Plan()
    for change in changes:
        orders.change_plan(change)
        plan = change.over(plan)
    assert orders.plan.over(Plan()) == plan
    orders.change_plan(last, reset=True)
    assert orders.plan == last


def test_a_bad_change_changes_nothing_and_is_told_to_nobody() -> None:
    orders, told = Orders(), list[str]()
    orders.subscribe(lambda: told.append("told"))
    with pytest.raises(InvalidRequest, match=r"plan\.topk: is 65"):
        orders.change_plan(PlanChanges(topk=65))
    with pytest.raises(InvalidRequest, match="trace_modules: has 'oracle'"):
        orders.change_tracing(TraceChanges(modules=("oracle",)))
    with pytest.raises(InvalidRequest, match="max_draft_tokens: is 257"):
        orders.change_plan(PlanChanges(), Control(max_draft_tokens=257))
    assert (orders.plan, orders.tracing, told) == (PlanChanges(), TraceChanges(), [])


def test_who_only_looks_orders_nothing_and_what_is_ordered_again_is_told_again() -> None:
    orders, told = Orders(lambda: 5.0), list[tuple[int, int]]()
    orders.change_plan(PlanChanges(topk=2), Control(max_draft_tokens=8))
    orders.subscribe(lambda: told.append((orders.plan_ms, orders.tracing_ms)))
    assert orders.change_plan(PlanChanges()) == orders.change_tracing(TraceChanges()) == {}
    assert told == []
    assert orders.change_plan(PlanChanges(topk=2)) == orders.change_tracing(TraceChanges(), reset=True) == {}
    assert orders.change_plan(PlanChanges(), reset=True) == {"topk": (2, None), "max_draft_tokens": (8, None)}
    assert told == [(5001, 0), (5001, 5000), (5002, 5000)], "each order is later than the one before it"


async def test_members_are_told_when_an_order_was_given_and_that_none_was(cluster: Cluster, member: Member) -> None:
    member.say(verifier(cluster))
    told = [await member.hear_whole() for _ in range(4)]
    assert told[2:] == [PlanOrder(), TracingOrder()]
    before_ms = round(time.time() * 1000)
    await cluster.client.set_plan(PlanChanges(topk=2))
    order = await member.hear_whole()
    assert isinstance(order, PlanOrder) and before_ms <= order.ordered_ms <= round(time.time() * 1000)


def test_who_stops_watching_is_told_no_more() -> None:
    orders, told = Orders(), list[int]()
    unwatch = orders.subscribe(lambda: told.append(orders.tracing.over(TraceScope()).level))
    orders.change_tracing(TraceChanges(level=2))
    unwatch()
    orders.change_tracing(TraceChanges(level=3))
    assert told == [2]


async def test_verifiers_are_told_of_a_new_plan_and_so_is_one_that_joins_later(
    cluster: Cluster, member: Member
) -> None:
    await cluster.join("d1", "127.0.0.1:8", NGRAM)
    member.say(verifier(cluster))
    await member.hear_first(4)
    told = await cluster.client.set_plan(PlanChanges(num_steps=0))
    assert told == PlanInForce(1, PlanChanges(num_steps=0))
    assert await member.hear() == PlanOrder(PlanChanges(num_steps=0))
    await cluster.client.set_plan(PlanChanges(topk=2))
    assert await member.hear() == PlanOrder(PlanChanges(num_steps=0, topk=2))
    late = Member(cluster.address)
    late.say(verifier(cluster, "v2"))
    directives = await late.hear_first(4)
    await late.hang_up()
    assert [type(each) for each in directives] == [Registered, Roster, PlanOrder, TracingOrder]
    assert directives[2] == PlanOrder(PlanChanges(num_steps=0, topk=2))


def knowing(cluster: Cluster, name: str, *controllers: str) -> Register:
    return replace(verifier(cluster, name), controllers=controllers)


async def test_verifiers_are_told_of_a_controller_and_so_is_one_that_joins_later(
    cluster: Cluster, member: Member
) -> None:
    member.say(knowing(cluster, "v1", "static", "goodput"))
    await member.hear_first(4)
    control = Control(Adaptive.GOODPUT, 32)
    assert await cluster.client.set_plan(control=control) == PlanInForce(1, PlanChanges(), control)
    assert await member.hear() == PlanOrder(PlanChanges(), control)
    await cluster.client.set_plan(PlanChanges(topk=2), Control(max_draft_tokens=8))
    both = PlanOrder(PlanChanges(topk=2), Control(Adaptive.GOODPUT, 8))
    assert await member.hear() == both
    late = Member(cluster.address)
    late.say(knowing(cluster, "v2", "static", "ema", "goodput"))
    assert (await late.hear_first(4))[2] == both
    await late.hang_up()


@pytest.mark.parametrize(
    "asked", [Control(Adaptive.GOODPUT), Control(max_draft_tokens=8)], ids=["by name", "by its bound"]
)
async def test_a_controller_that_a_verifier_does_not_know_is_refused_and_nothing_changes(
    cluster: Cluster, member: Member, asked: Control
) -> None:
    member.say(knowing(cluster, "v1", "static", "ema"))
    await member.hear_first(4)
    known = r"verifier v1 runs a build that cannot be told to use goodput \(it knows: static, ema\)"
    with pytest.raises(Incompatible, match=known):
        await cluster.client.set_plan(PlanChanges(topk=2), asked)
    assert await cluster.client.set_plan() == PlanInForce(1, PlanChanges())


async def test_a_verifier_of_an_older_build_that_joins_later_keeps_its_controller_and_hears_the_rest(
    cluster: Cluster, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.client.set_plan(PlanChanges(topk=2), Control(Adaptive.GOODPUT))
    member.say(verifier(cluster, "old"))
    assert (await member.hear_first(4))[2] == PlanOrder(PlanChanges(topk=2))
    assert "cannot be told to use the controller in force" in caplog.text


async def test_of_a_bound_alone_a_verifier_of_an_older_build_that_joins_later_hears_nothing(
    cluster: Cluster, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.client.set_plan(PlanChanges(topk=2), Control(max_draft_tokens=8))
    member.say(knowing(cluster, "old", "static", "ema"))
    assert (await member.hear_first(4))[2] == PlanOrder(PlanChanges(topk=2))
    assert "cannot be told to use the controller in force" in caplog.text
    late = Member(cluster.address)
    late.say(knowing(cluster, "new", "static", "ema", "goodput"))
    assert (await late.hear_first(4))[2] == PlanOrder(PlanChanges(topk=2), Control(max_draft_tokens=8))
    await late.hang_up()


async def test_every_member_is_told_what_to_trace_and_the_coordinator_obeys_too(
    cluster: Cluster, member: Member
) -> None:
    await cluster.join("v1", "127.0.0.1:8", verifier(cluster).role)
    member.say(Register("d1", "127.0.0.1:7", NGRAM, 1))
    assert await member.hear_first(2) == [Registered(50), TracingOrder()]
    changes = TraceChanges(level=3, ratio=0.5, modules=("drafter", "coordinator"))
    assert await cluster.client.set_tracing(changes) == TracingInForce(2, changes)
    assert await member.hear() == TracingOrder(changes)
    assert await cluster.client.set_tracing(reset=True) == TracingInForce(2, TraceChanges())
    assert await member.hear() == TracingOrder()


async def test_without_changes_one_is_told_what_is_in_force_and_nobody_else_hears_of_it(
    cluster: Cluster, member: Member
) -> None:
    await cluster.client.set_plan(PlanChanges(wait_budget_us=7))
    member.say(verifier(cluster))
    await member.hear_first(4)
    assert await cluster.client.set_plan() == PlanInForce(1, PlanChanges(wait_budget_us=7))
    assert await cluster.client.plan() == PlanInForce(1, PlanChanges(wait_budget_us=7))
    await cluster.client.set_plan(PlanChanges(topk=3))
    assert await member.hear() == PlanOrder(PlanChanges(topk=3, wait_budget_us=7))


async def test_what_is_traced_can_be_asked_for_and_nobody_hears_of_it(cluster: Cluster, member: Member) -> None:
    member.say(Register("d1", "127.0.0.1:7", NGRAM, 1))
    await member.hear_first(2)
    assert await cluster.client.tracing() == TracingInForce(1, TraceChanges())
    await cluster.client.set_tracing(TraceChanges(level=2))
    assert await cluster.client.tracing() == TracingInForce(1, TraceChanges(level=2))
    assert await member.hear() == TracingOrder(TraceChanges(level=2))


async def test_a_change_is_logged_with_what_it_was_before_and_who_asked_and_looking_is_not(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await cluster.client.set_plan(PlanChanges(num_steps=0))
    await cluster.client.set_plan(PlanChanges(topk=2), Control(Adaptive.GOODPUT), reset=True)
    await cluster.client.set_tracing(TraceChanges(modules=("drafter", "verifier")))
    told = said(caplog, "plan changed", "tracing changed")
    assert told[0] == {"num_steps": "as set -> 0"}
    assert told[1] == {"num_steps": "0 -> as set", "topk": "as set -> 2", "adaptive": "as set -> goodput"}
    assert told[2] == {"modules": "as set -> drafter,verifier"}
    for look in (cluster.client.plan, cluster.client.tracing, cluster.client.set_plan, cluster.client.set_tracing):
        await look()
    await cluster.client.set_plan(PlanChanges(topk=2), Control(Adaptive.GOODPUT), reset=True)
    assert len(said(caplog, "plan changed", "tracing changed")) == 3, "what changes nothing leaves no line"


def said(caplog: pytest.LogCaptureFixture, *sentences: str) -> list[dict[str, object]]:
    """What these lines say that was changed, after a look at who they say asked for it."""
    found = [dict(vars(record)["specsplit_fields"]) for record in caplog.records if record.message in sentences]
    for values in found:
        assert values.pop("told") == 0
        assert values.pop("by") == NOT_ASKED
        assert str(values.pop("peer")).startswith("ipv4:127.0.0.1:")
    return found


async def test_a_change_that_is_no_good_is_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match=r"plan\.num_draft_tokens: is 0, expected 1\.\.256"):
        await cluster.client.set_plan(PlanChanges(num_draft_tokens=0))
    with pytest.raises(InvalidRequest, match=r"trace_ratio: is 2,"):
        await cluster.client.set_tracing(TraceChanges(ratio=2))

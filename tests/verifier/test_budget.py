"""Which nodes of a batch a step takes: the best there are, checked against all there are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.speculation import Grow, Mirror
from specsplit_verifier.policy.budget import Line, fixed, spend

Survivals = list[list[float]]
SURVIVALS = st.lists(
    st.lists(st.floats(0.001, 1.0), max_size=4).map(lambda found: sorted(found, reverse=True)), min_size=1, max_size=3
)
LINES = st.builds(Line, st.floats(1e-3, 1.0), st.floats(0.0, 0.5))


def rate(survivals: Survivals, nodes: tuple[int, ...], line: Line) -> float:
    length = len(nodes) + sum(sum(each[:count]) for each, count in zip(survivals, nodes, strict=True))
    return length / (line.base_s + line.token_s * (len(nodes) + sum(nodes)))


def test_the_nodes_of_a_session_that_accepts_badly_go_to_one_that_accepts_well() -> None:
    """Worked out by hand: a step takes 10 ms and 1 ms a token; two roots are there already."""
    line = Line(0.010, 0.001)
    spending = spend([[0.9, 0.8, 0.7, 0.1], [0.3, 0.1]], line)
    # 2/12, 2.9/13, 3.7/14, 4.4/15, then 4.7/16 = 0.29375 beats 0.2933; 4.8/17 is less.
    assert spending.nodes == [3, 1]
    assert spending.length == pytest.approx(4.7)
    assert spending.seconds == pytest.approx(0.016)
    assert fixed([[0.9, 0.8], [0.3]], line, 1)[:3] == ([1, 1], pytest.approx(3.2), pytest.approx(0.014))


@given(SURVIVALS, LINES)
def test_no_other_choice_commits_more_per_second(survivals: Survivals, line: Line) -> None:
    spending = spend(survivals, line)
    every = product(*(range(len(each) + 1) for each in survivals))
    best = max(rate(survivals, nodes, line) for nodes in every)
    assert spending.length / spending.seconds == pytest.approx(best)
    assert rate(survivals, tuple(spending.nodes), line) == pytest.approx(best)


@given(SURVIVALS, LINES)
def test_a_node_is_taken_exactly_if_it_is_worth_the_price_of_the_step(survivals: Survivals, line: Line) -> None:
    spending = spend(survivals, line)
    price = spending.price(line)
    for own, count in zip(survivals, spending.nodes, strict=True):
        assert all(survival >= price * (1 - 1e-9) for survival in own[:count])
        assert all(survival <= price * (1 + 1e-9) for survival in own[count:])


@given(SURVIVALS, LINES, st.floats(0.0, 0.5))
def test_dearer_tokens_never_buy_more_nodes(survivals: Survivals, line: Line, more_s: float) -> None:
    dearer = line._replace(token_s=line.token_s + more_s)
    assert sum(spend(survivals, dearer).nodes) <= sum(spend(survivals, line).nodes)


@given(SURVIVALS, st.floats(1e-3, 1.0))
def test_where_tokens_cost_nothing_every_node_is_taken(survivals: Survivals, base_s: float) -> None:
    assert spend(survivals, Line(base_s, 0.0)).nodes == [len(each) for each in survivals]


@given(SURVIVALS, LINES, st.data())
def test_at_least_so_many_nodes_are_taken_whether_they_pay_or_not(
    survivals: Survivals, line: Line, data: st.DataObject
) -> None:
    least = [data.draw(st.integers(0, len(each))) for each in survivals]
    spending = spend(survivals, line)
    raised = spending.at_least(least).nodes
    assert all(one == max(two, three) for one, two, three in zip(raised, spending.nodes, least, strict=True))


@given(SURVIVALS, LINES, st.integers(0, 12))
def test_where_there_is_room_for_fewer_nodes_no_others_of_that_number_are_likelier(
    survivals: Survivals, line: Line, most: int
) -> None:
    wanted = fixed(survivals, line)
    spending = wanted.at_most(most, survivals, line)
    every = product(*(range(len(each) + 1) for each in survivals))
    best = max(rate(survivals, nodes, line) for nodes in every if sum(nodes) == sum(spending.nodes))
    assert sum(spending.nodes) == min(most, sum(wanted.nodes))
    assert rate(survivals, tuple(spending.nodes), line) == pytest.approx(best)
    assert spending.length / spending.seconds == pytest.approx(best)
    nothing = {number for number, each in enumerate(survivals) if each and not spending.nodes[number]}
    assert spending.crowded_out == nothing


def test_a_batch_of_nobody_takes_nothing() -> None:
    assert spend([], Line(0.01, 0.0)).nodes == []


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(-3.0, 0.0)), min_size=1, max_size=40), st.integers(1, 3))
def test_fewer_of_the_best_nodes_are_the_best_of_fewer(nodes: list[tuple[int, float]], topk: int) -> None:
    mirror = Mirror(1, 0, 0, 64, 100)
    ids, parents = list(range(1, len(nodes) + 1)), [parent % (at + 1) for at, (parent, _) in enumerate(nodes)]
    mirror.grow(Grow(0, ids, parents, list(range(len(nodes))), [edge for _, edge in nodes]))
    whole = mirror.preview(16, topk, 8)
    assert list(whole.log_survivals) == sorted(whole.log_survivals, reverse=True)
    for count in range(1, 17):
        fresh = Mirror(1, 0, 0, 64, 100)
        fresh.grow(Grow(0, ids, parents, list(range(len(nodes))), [edge for _, edge in nodes]))
        assert whole.first(count) == mirror.preview(count, topk, 8) == fresh.preview(count, topk, 8)

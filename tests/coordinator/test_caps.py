"""What an operator lets a request ask for: values and laws, and the same over real gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.membership import PlanInForce
from specsplit.settings import CoordinatorSettings
from specsplit.values import PlanChanges
from specsplit_coordinator.requests.caps import Caps, tell_small_queue

from .conftest import CONTEXT

if TYPE_CHECKING:
    from .conftest import Script, StartCluster

Say = Callable[..., "Script"]
TOKENS = st.none() | st.integers(1, 10_000)
CAPS = {"max_num_steps": 3, "max_topk": 2, "max_num_draft_tokens": 8, "max_wait_budget_us": 1000}


@given(default=TOKENS, most=TOKENS, context_left=st.integers(1, 10_000))
def test_a_request_without_max_tokens_gets_no_more_than_the_default_the_cap_and_what_is_left_of_the_context(
    default: int | None, most: int | None, context_left: int
) -> None:
    got = Caps(default, most).max_tokens(None, context_left)
    if default is None and most is None:
        assert got is None
    else:
        assert got == min(tokens for tokens in (default, most, context_left) if tokens is not None)


@given(default=TOKENS, most=TOKENS, asked=st.integers(0, 10_000))
def test_a_request_that_gives_max_tokens_gets_what_it_asks_for(
    default: int | None, most: int | None, asked: int
) -> None:
    assert Caps(default, most).max_tokens(asked, 10_000) == asked


def test_a_default_above_the_cap_is_refused_at_start() -> None:
    with pytest.raises(InvalidRequest, match="default_max_tokens: is 9, expected at most max_max_tokens = 8"):
        CoordinatorSettings(model=Path("unused"), default_max_tokens=9, max_max_tokens=8)


async def test_without_settings_the_verifier_decides_how_much_a_request_gets(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster()
    verifier = await cluster.add_verifier(say((5,)))
    await cluster.client.generate("x")
    assert verifier.asked[0].stopping.max_tokens is None


async def test_the_verifier_is_told_the_default_or_what_was_asked_for(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(default_max_tokens=40, max_max_tokens=100)
    verifier = await cluster.add_verifier(say((5,)))
    await cluster.client.generate("x")
    await cluster.client.generate("x", max_tokens=100, stop_token_ids=[7])
    await cluster.client.generate([1] * (CONTEXT - 3))
    assert [request.stopping.max_tokens for request in verifier.asked] == [40, 100, 3], "a default is no demand"
    assert tuple(verifier.asked[1].stopping.stop_token_ids) == (7,)


async def test_more_output_than_the_operator_allows_is_refused_with_the_number_and_the_setting(
    start_cluster: StartCluster, say: Say
) -> None:
    cluster = await start_cluster(max_max_tokens=100)
    verifier = await cluster.add_verifier(say((5,)))
    with pytest.raises(InvalidRequest) as caught:
        await cluster.client.generate("x", max_tokens=101)
    problem = "is 101, more than this coordinator allows; expected at most max_max_tokens = 100"
    assert (caught.value.field, caught.value.problem) == ("max_tokens", problem)
    assert verifier.asked == []


@pytest.mark.parametrize("name", ["num_steps", "topk", "num_draft_tokens", "wait_budget_us"])
async def test_a_plan_beyond_a_cap_is_refused_and_one_at_the_cap_is_taken(
    start_cluster: StartCluster, say: Say, name: str
) -> None:
    cluster = await start_cluster(**CAPS)
    verifier = await cluster.add_verifier(say((5,)))
    cap = CAPS[f"max_{name}"]
    with pytest.raises(InvalidRequest) as caught:
        await cluster.client.generate("x", plan=replace(PlanChanges(), **{name: cap + 1}))
    assert caught.value.field == f"plan.{name}"
    assert f"is {cap + 1}, " in caught.value.problem and f"max_{name} = {cap}" in caught.value.problem
    assert verifier.asked == []
    await cluster.client.generate("x", plan=replace(PlanChanges(), **{name: cap}))
    assert verifier.asked[0].plan == replace(PlanChanges(), **{name: cap})


async def test_the_caps_bind_requests_and_not_the_operator(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(**CAPS)
    verifier = await cluster.add_verifier(say((5,)))
    assert await cluster.client.set_plan(PlanChanges(num_steps=9)) == PlanInForce(1, PlanChanges(num_steps=9))
    await cluster.client.generate("x", plan=PlanChanges(topk=1))
    assert verifier.asked[0].plan == PlanChanges(topk=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_queue": 4}, True),
        ({"max_queue": 15}, True),
        ({"max_queue": 16}, False),
        ({"max_queue": 4, "max_n": 4}, False),
        ({"max_queue": 4, "max_n": 5}, True),
        ({"max_queue": 0}, False),
        ({}, False),
    ],
)
def test_a_queue_that_is_smaller_than_one_request_may_be_is_told_of(
    given: dict[str, int], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tell_small_queue(CoordinatorSettings.model_validate({"model": Path("unused")} | given))
    assert bool(caplog.records) is told

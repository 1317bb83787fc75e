"""What those who watch a session are told survives the wire; what contradicts itself is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.sessions import WatchedStep
from specsplit.speculation import Grow
from specsplit.speculation.mirror import MAX_ID
from specsplit.v1 import verifier_pb2
from specsplit.values import NoDrafts, NoDraftsCause, Plan, SpeculationStatistics
from specsplit.wire.watching import watch_event, watch_from_wire, watch_response, watch_to_wire

U32 = st.integers(0, 2**32 - 1)
EDGES = st.floats(-1024, 0, width=32)


@st.composite
def steps(draw: st.DrawFn) -> WatchedStep:
    """Any tree, and any path down from its root."""
    count = draw(st.integers(1, 8))
    parents = (-1, *(draw(st.integers(0, i - 1)) for i in range(1, count)))
    path = [0]
    while below := [i for i, parent in enumerate(parents) if parent == path[-1]]:
        if draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(below)))
    ids, tokens = (
        draw(st.lists(st.integers(0, most), min_size=count, max_size=count, unique=True))
        for most in (MAX_ID, 2**32 - 1)
    )
    return WatchedStep(
        tuple(sorted(ids)),
        parents,
        tuple(tokens),
        tuple(draw(EDGES) for _ in parents),
        (True, *(draw(st.booleans()) for _ in parents[1:])),
        tuple(path),
        draw(U32),
        draw(st.integers(0, len(path))),
        draw(U32),
        draw(U32),
        Plan(num_steps=draw(st.integers(0, 64))),
        SpeculationStatistics(draw(U32), draw(U32)),
        draw(st.none() | st.builds(NoDrafts, st.sampled_from(NoDraftsCause), U32, st.floats(0, 9), st.floats(0, 9))),
    )


@given(steps() | st.builds(Grow, U32, st.just((3, 4)), st.just((0, 3)), st.just((7, 8)), st.just((-1.0, -2.0))), U32)
def test_events_round_trip(event: Grow | WatchedStep, missed: int) -> None:
    data = watch_response(event, missed).SerializeToString()
    assert watch_event(verifier_pb2.WatchResponse.FromString(data)) == (event, missed)


def test_the_question_round_trips_and_is_capped() -> None:
    assert watch_from_wire(watch_to_wire("a name")) == "a name"
    with pytest.raises(InvalidRequest, match="request_id: has 257 characters"):
        watch_from_wire(watch_to_wire("x" * 257))


GOOD = WatchedStep(
    (0, 1, 2), (-1, 0, 1), (5, 6, 7), (0.0, -1.0, -2.0), (True, True, False), (0, 1), 9, 2, 4, 1, Plan(),
    SpeculationStatistics(1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("parents", [-1, 0], "step.parents: has 2 entries, expected as many as node_ids: 3"),
        ("parents", [-1, 2, 1], "step.parents: are no tree"),
        ("parents", [0, 0, 1], "step.parents: are no tree"),
        ("node_ids", [0, 2, 2], "step.node_ids: do not ascend"),
        ("node_ids", [0, 1, 2**63], "step.node_ids: holds 9223372036854775808, expected at most"),
        ("edges", [0.0, float("nan"), -2.0], "step.edges: holds nan, expected numbers in -1024..0"),
        ("verified", [True], "step.verified: has 1 entries"),
        ("accepted", [], "step.accepted: is no path"),
        ("accepted", [0, 2], "step.accepted: is no path"),
        ("accepted", [0, 1, 2, 9], "step.accepted: is no path"),
        ("committed", 3, "step.committed: is 3, expected at most 2"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(field: str, value: object, problem: str) -> None:
    message = watch_response(GOOD, 0)
    message.step.ClearField(field)  # pyright: ignore[reportArgumentType]
    if isinstance(value, list):
        getattr(message.step, field).extend(value)
    else:
        setattr(message.step, field, value)
    with pytest.raises(InvalidRequest, match=problem):
        watch_event(message)


def test_a_step_with_the_same_token_twice_below_one_parent_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"step\.token_ids: are no tree, expected different"):
        watch_event(watch_response(replace(GOOD, parents=(-1, 0, 0), tokens=(5, 6, 6)), 0))


def test_an_event_that_is_absent_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="event: is absent"):
        watch_event(verifier_pb2.WatchResponse())
    for field in ("plan", "speculation"):
        message = watch_response(GOOD, 0)
        message.step.ClearField(field)
        with pytest.raises(InvalidRequest, match="step: has no plan or no speculation"):
            watch_event(message)

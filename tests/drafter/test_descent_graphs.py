"""Captured descents: through padding, and memory that stays where it is, they draw what eager ones draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.records import Eager
from specsplit.values import Sampling
from specsplit_drafter.descent.graph_cache import GraphCache
from specsplit_drafter.descent.graphs import padded_length
from tests.drafter.head_toys import HeadVerifier, head_of
from tests.drafter.test_heads import SAMPLED, Checked, run
from tests.drafter.toys import deliver, table_of
from tests.support.graphs import FailingCapturer, RecordingCapturer


@pytest.mark.parametrize("name", ["eagle", "eagle3", "nextn"])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_what_graphs_draw_is_what_the_reference_says(name: str, sampling: Sampling) -> None:
    proposer, capturer = Checked(name), RecordingCapturer()
    proposer.capture_descents(capturer)
    run(proposer, head_of(name), sampling=sampling, levels=3, steps=16)
    assert capturer.replays == proposer.graphs.replayed > proposer.graphs.captured == capturer.captures > 2
    assert proposer.drawn > 50
    assert proposer.pages.used == 0


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, seed=5)], ids=["greedy", "sampled"])
def test_the_first_descent_of_a_session_is_one_that_was_rehearsed(name: str, sampling: Sampling) -> None:
    proposer, capturer = Checked(name), RecordingCapturer()
    proposer.capture_descents(capturer)
    proposer.expect_descents(3, 12)
    while proposer.prepare():
        pass
    rehearsed, used = capturer.captures, proposer.pages.used
    assert rehearsed == proposer.graphs.captured >= 8 and used == 0, "it gives its slots back"
    table = table_of(proposer, width=12, survival=0.006, levels=3)
    verifier = HeadVerifier(table, (1, 1), [1 + number % 20 for number in range(50)], head_of(name), sampling=sampling)
    verifier.feed()
    table.expand()
    assert (capturer.captures, capturer.replays, sum(proposer.graphs.eager.values())) == (rehearsed, 1, 0)
    deliver(table, verifier)
    assert proposer.drawn > 5
    verifier.close()


def test_what_there_is_no_room_for_is_not_rehearsed() -> None:
    proposer, capturer = Checked("eagle", num_slots=80), RecordingCapturer()
    proposer.capture_descents(capturer)
    proposer.expect_descents(2, 12)
    while proposer.prepare():
        pass
    assert capturer.captures == 2, "greedy and sampled behind 64 tokens"


def test_a_session_with_biases_is_drawn_for_eagerly() -> None:
    proposer, capturer = Checked("eagle"), RecordingCapturer()
    proposer.capture_descents(capturer)
    run(proposer, head_of("eagle"), sampling=replace(SAMPLED, logit_bias=((3, 0.5),)), levels=3)
    assert capturer.captures == 0
    assert proposer.graphs.eager[Eager.BIAS] > 10 and not proposer.graphs.eager[Eager.SIZE]


def test_a_shape_that_has_come_by_takes_no_graph_of_another_and_a_full_table_captures_no_more() -> None:
    table = GraphCache[str](most_graphs=2, most_uncaptured=3, unused_after=100)
    for shape in "ab":
        assert captured(table, shape) == [Eager.FIRST, None]
    for shape in "cdefgh":
        assert captured(table, shape) == [Eager.FULL, Eager.FULL]
    assert (table.find("a"), table.find("b"), len(table)) == ("a", "b", 2)


def test_a_graph_that_has_not_been_used_for_long_goes_for_a_shape_that_comes_again() -> None:
    table = GraphCache[str](most_graphs=2, most_uncaptured=3, unused_after=10)
    for shape in "ab":
        captured(table, shape)
    assert [table.find("b") for _ in range(10)] == ["b"] * 10
    assert captured(table, "c") == [Eager.FULL, Eager.FIRST], "what may go is asked for by what has come twice"
    assert len(table) == 1 and captured(table, "c") == [None, "c"]
    assert (table.find("a"), table.find("b"), table.find("c")) == (None, "b", "c")


def test_shapes_that_never_come_again_in_time_are_no_first_ones_once_all_that_are_remembered_are_such() -> None:
    table = GraphCache[int](most_graphs=2, most_uncaptured=3)
    told = [table.why_eager(shape) for shape in range(6)]
    assert told == [Eager.FIRST] * 3 + [Eager.FULL] * 3, "what they cost is learnt"
    assert table.why_eager(5) is None, "and they may be captured"


def captured(table: GraphCache[str], shape: str) -> list[object]:
    """What is found of a shape that comes twice: its graph, or why there is none; None: it is captured now."""
    found = list[object]()
    for _ in range(2):
        graph = table.find(shape)
        found.append(why := graph or table.why_eager(shape))
        if why is None:
            table.keep(shape, shape)
    return found


def test_full_tables_draw_eagerly_what_the_reference_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsplit_drafter.descent.graphs.GraphCache", lambda: GraphCache[object](most_graphs=1))
    proposer, capturer = Checked("eagle"), RecordingCapturer()
    proposer.capture_descents(capturer)
    run(proposer, head_of("eagle"), levels=3)
    assert capturer.captures == proposer.graphs.captured == 1
    assert proposer.graphs.eager[Eager.FULL] > 5
    assert proposer.drawn > 50


def test_after_a_capture_that_fails_all_new_shapes_are_drawn_eagerly() -> None:
    proposer = Checked("eagle")
    proposer.capture_descents(FailingCapturer(last=1))
    run(proposer, head_of("eagle"), levels=3)
    assert proposer.graphs.captured == 1
    assert proposer.graphs.eager[Eager.FAILED] > 5
    assert proposer.drawn > 50


@given(st.integers(0, 5000))
def test_lengths_are_padded_to_few_and_hardly_more_than_twice(length: int) -> None:
    assert length <= padded_length(length) <= max(16, 2 * length)
    assert padded_length(padded_length(length)) == padded_length(length)

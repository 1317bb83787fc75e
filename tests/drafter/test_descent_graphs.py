"""Captured descents: through padding, and memory that stays where it is, they draw what eager ones draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.records import Eager
from specsplit.values import Sampling
from specsplit_drafter.descent_graphs import fitting
from tests.drafter.head_toys import head_of
from tests.drafter.test_heads import SAMPLED, Checked, run
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


def test_a_session_with_biases_is_drawn_for_eagerly() -> None:
    proposer, capturer = Checked("eagle"), RecordingCapturer()
    proposer.capture_descents(capturer)
    run(proposer, head_of("eagle"), sampling=replace(SAMPLED, logit_bias=((3, 0.5),)), levels=3)
    assert capturer.captures == 0
    assert proposer.graphs.eager[Eager.SIZE] > 10


def test_after_a_capture_that_fails_all_new_shapes_are_drawn_eagerly() -> None:
    proposer = Checked("eagle")
    proposer.capture_descents(FailingCapturer(last=1))
    run(proposer, head_of("eagle"), levels=3)
    assert proposer.graphs.captured == 1
    assert proposer.graphs.eager[Eager.FAILED] > 5
    assert proposer.drawn > 50


@given(st.integers(0, 5000))
def test_lengths_are_padded_to_few_and_hardly_more_than_twice(length: int) -> None:
    assert length <= fitting(length) <= max(16, 2 * length)
    assert fitting(fitting(length)) == fitting(length)

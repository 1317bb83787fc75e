"""Levels drawn in one go on a GPU: those that come one by one on the CPU, without a word to the host, and the same from a captured graph.

These tests have never run: they were written on a machine without a GPU.
"""

from __future__ import annotations

import pytest
import torch

from specsplit_drafter.descent.descent import Descent, DeviceLevel
from specsplit_drafter.drafts.draft_model import DraftModel
from tests.drafter.descents import Twin, check, proposer_of
from tests.drafter.head_toys import VOCABULARY
from tests.drafter.test_descent import MIXES, RECURRENT
from tests.support.rounding import APART, assert_same_log_probabilities

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
GPU = "cuda:0"


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("levels", "width"), [(2, 3), (4, 5), (3, 18)])
def test_levels_in_one_go_are_those_that_come_one_by_one_on_the_cpu(
    name: str, mix: str, levels: int, width: int
) -> None:
    one, other = (Twin(name, proposer_of(name, device=device), MIXES[mix]) for device in (GPU, "cpu"))
    found = check(one, other, levels, width, apart=8 * APART)
    assert [len(children.levels) for children in found] == [levels - 1, min(levels - 1, 1), levels - 1]


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("mix", MIXES)
def test_nothing_is_asked_of_the_device_before_all_levels_are_drawn(
    name: str, mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = Descent.draw, list[int]()

    def silent(self: Descent, model: DraftModel) -> list[DeviceLevel]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            levels = draw(self, model)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        drawn.append(len(levels))
        return levels

    monkeypatch.setattr(Descent, "draw", silent)
    twin = Twin(name, proposer_of(name, device=GPU), MIXES[mix])
    twin.proposer.expand(twin.frontiers(5), 4)
    assert drawn == [3]


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("mix", MIXES)
def test_a_captured_descent_draws_what_an_eager_one_does(name: str, mix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = Descent.draw, list[int]()

    def captured(self: Descent, model: DraftModel) -> list[DeviceLevel]:
        eager = draw(self, model)  # on this stream: it warms up what the capture may not set up
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            levels = draw(self, model)
        graph.replay()
        for ours, theirs in zip(levels, eager, strict=True):
            assert torch.equal(ours.tokens, theirs.tokens)
            assert torch.equal(ours.parents, theirs.parents)
            assert_same_log_probabilities(ours.children.raw.cpu(), theirs.children.raw.cpu(), VOCABULARY.size)
        drawn.append(len(levels))
        return levels

    monkeypatch.setattr(Descent, "draw", captured)
    twin = Twin(name, proposer_of(name, device=GPU), MIXES[mix])
    twin.proposer.expand(twin.frontiers(5), 4)
    assert drawn == [3]

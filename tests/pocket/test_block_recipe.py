"""The block drafter of the pocket target learns what it will be asked: training computes as serving does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from scripts.pocket import blocks
from scripts.pocket.blocks import BLOCK, MASK, Blocks
from scripts.pocket.draft import load
from specsplit.model import RowPages
from specsplit.model.heads import BlockRows, BlockRunner, load_block_head
from specsplit.values import DrafterKind
from tests.support.rounding import assert_same_sums

POCKET = Path("models/pocket")
WIDTH = 48


@torch.inference_mode()
def test_blocks_in_training_have_the_states_that_they_have_when_they_are_served() -> None:
    head = load_block_head(POCKET / "dflash", POCKET / "target", DrafterKind.DFLASH)
    lesson = blocks.teach(load(POCKET / "target"), torch.arange(300, 300 + WIDTH)[None])
    drawn = Blocks(torch.tensor([[20, 30, 33]]), torch.tensor([[0, 2, 4]]), torch.tensor([[0, 0, 3]]))
    hidden = blocks.hidden_of(head, lesson, drawn)[0]
    for found, anchor, shown, gap in zip(
        hidden, drawn.anchors[0].tolist(), drawn.shown[0].tolist(), drawn.gaps[0].tolist(), strict=True
    ):
        runner, seen = BlockRunner(head, WIDTH + BLOCK), anchor - gap
        runner.extend(lesson.features[0], np.arange(WIDTH), np.arange(WIDTH))
        tokens = np.full((1, BLOCK), MASK)
        tokens[0, : shown + 1] = lesson.tokens[0, anchor : anchor + shown + 1].numpy()
        slots = np.concatenate((np.arange(seen), WIDTH + np.arange(BLOCK)))
        rows = BlockRows(tokens, np.array([anchor]), RowPages.alone(slots, len(slots)))
        assert_same_sums(found, runner.draft([rows])[0])


def test_what_is_learnt_is_what_is_not_known() -> None:
    """Positions behind what is shown count less and less; those before it, which see no token behind them, count a half."""
    drawn = Blocks(torch.tensor([[5]]), torch.tensor([[2]]), torch.tensor([[0]]))
    expected = [0.5, 0.5, *(blocks.DECAY**ahead for ahead in range(BLOCK - 2))]
    assert torch.allclose(drawn.weights[0, 0], torch.tensor(expected))
    assert drawn.places[0, 0].tolist() == list(range(5, 5 + BLOCK))


def test_blocks_are_drawn_within_the_text_and_the_same_again() -> None:
    drawn, again = Blocks.drawn(3, 128, 7), Blocks.drawn(3, 128, 7)
    assert torch.equal(drawn.anchors, again.anchors) and torch.equal(drawn.shown, again.shown)
    assert int(drawn.anchors.min()) >= 1 and int(drawn.places.max()) + 1 < 128
    assert bool((drawn.gaps[drawn.shown < blocks.MOST_SHOWN] == 0).all())

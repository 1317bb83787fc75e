"""What blocks show of the text while a block drafter learns, beside what a drafter is asked when it is served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specsplit.training.speculators_blocks import MOST_SHOWN, Shown, teach_shown_tokens
from specsplit_drafter.kinds import block_model

T, F = True, False
SIZES = st.integers(2, 16)


def shown(tokens: list[int], missing: list[int]) -> Shown:
    return Shown(torch.tensor(tokens), torch.tensor(missing))


def test_as_many_tokens_are_shown_as_a_drafter_shows() -> None:
    assert MOST_SHOWN == block_model.MOST_SHOWN


@given(size=SIZES, seed=st.integers(0, 2**31))
def test_half_of_the_blocks_show_tokens_and_features_are_missing_behind_the_most_alone(size: int, seed: int) -> None:
    torch.manual_seed(seed)
    drawn, most = Shown.drawn(512, size), min(MOST_SHOWN, (size - 1) // 2)
    assert int(drawn.tokens.min()) >= 0 and int(drawn.tokens.max()) == most
    assert bool((drawn.missing[drawn.tokens < most] == 0).all())
    assert int(drawn.missing.max()) <= most and bool(drawn.missing.any()) == (most > 0)
    plain = float((drawn.tokens == 0).float().mean())
    assert plain == 1 if most == 0 else 0.3 < plain < 0.8


def test_tokens_that_are_shown_are_known() -> None:
    assert shown([0, 2], [0, 0]).known(4).tolist() == [[T, F, F, F], [T, T, T, F]]


@pytest.mark.parametrize(
    ("from_anchor", "causal", "expected"),
    [
        (True, True, [[T, T, T, T], [T, T, T, T]]),
        (True, False, [[T, T, T, T], [F, F, T, T]]),
        (False, True, [[F, T, T, T], [F, F, F, T]]),
        (False, False, [[F, T, T, T], [F, F, F, T]]),
    ],
)
def test_what_a_position_sees_is_not_learnt(from_anchor: bool, causal: bool, expected: list[list[bool]]) -> None:
    learnt = shown([0, 2], [0, 0]).learnt(4, from_anchor=from_anchor, causal=causal)
    assert learnt.tolist() == expected


def test_a_block_sees_the_features_before_those_that_are_missing_of_its_own_text() -> None:
    texts = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    anchors = torch.tensor([3, 3, 3, 6, 6, 6])
    assert shown([4] * 6, [0, 2, 4, 1, 2, 3]).ends(anchors, texts).tolist() == [3, 1, 3, 5, 6, 6]


class Drafter:
    """In the place of the model of speculators: as many steps, and each notes what it is given."""

    block_size = 4

    def __init__(self) -> None:
        self.config = SimpleNamespace(sample_from_anchor=True)
        self.embed_tokens = torch.nn.Embedding.from_pretrained(torch.arange(100.0)[:, None])
        self.masks: list[dict[str, Any]] = []
        self.embedded = torch.empty(0)

    def _build_attention_mask(self, loss_mask: Tensor, blocks: int, texts: Tensor, device: Any) -> Any:
        anchors = torch.tensor([5, 9])[:blocks]
        for window in (None, 1):
            self._create_attention_mask(
                document_ids=texts,
                total_seq_len=loss_mask.shape[1],
                anchor_positions=anchors,
                device=device,
                sliding_window=window,
            )
        return None, None, anchors, torch.ones(blocks, dtype=torch.bool)

    def _create_attention_mask(
        self,
        document_ids: Tensor,
        total_seq_len: int,
        anchor_positions: Tensor,
        device: Any,
        sliding_window: int | None,
    ) -> None:
        self.masks.append({"ends": anchor_positions.tolist(), "window": sliding_window})

    def _backbone_forward(self, hidden_states: Tensor, input_ids: Tensor, loss_mask: Tensor, texts: Tensor) -> Any:
        anchors = self._build_attention_mask(loss_mask, 2, texts, None)[2]
        masked = torch.full((1, 8), 99)
        masked[0, ::4] = input_ids[0, anchors]
        self.embedded = self.embed_tokens(masked)[0, :, 0]
        return None, None, None, torch.ones(1, 8), anchors


@pytest.mark.parametrize(("causal", "windows"), [(True, [16, 1]), (False, [None, 1])])
def test_a_model_embeds_what_is_shown_and_its_masks_end_where_features_do(
    causal: bool, windows: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shown, "drawn", lambda *_: shown([0, 1], [0, 1]))
    kind: Any = type("Taught", (Drafter,), {})
    teach_shown_tokens(kind, causal=causal)
    model, text = kind(), torch.arange(16)[None]
    *_, counted, _ = model._backbone_forward(
        torch.empty(0), text, torch.ones(1, 16), torch.zeros(1, 16, dtype=torch.long)
    )
    assert model.embedded.tolist() == [5, 99, 99, 99, 9, 10, 99, 99]
    assert model.masks == [{"ends": [5, 8], "window": window} for window in windows]
    assert counted.tolist() == [[1, 1, 1, 1, float(causal), 1, 1, 1]]

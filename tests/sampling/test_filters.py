"""Allowed sets are those of Hugging Face's processors, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specsplit.sampling import Filters, restrict
from specsplit.values import Sampling


def hugging_face(scaled: Tensor, sampling: Sampling) -> Tensor:
    warpers = LogitsProcessorList()
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers(torch.LongTensor(1, 1), scaled[None])[0]


def restricted_by(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    return restrict(scaled, Filters.of(samplings, scaled.shape[1], scaled.device))


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.just(1.0),
    top_k=st.sampled_from([0, 1, 2, 7, 300, 10_000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.001, 0.1, 0.9, 1.0]),
)


@given(
    st.lists(SAMPLINGS, min_size=1, max_size=6),
    st.sampled_from([3, 100, 1000]),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from([0.0, 0.3, 0.99]),
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=150)
def test_every_row_keeps_what_hugging_face_keeps(
    samplings: list[Sampling], vocab_size: int, spread: float, impossible: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # distinct logits: Hugging Face breaks ties by the order of a sort, specsplit keeps them
    scaled = torch.stack([torch.randperm(vocab_size, generator=generator) for _ in samplings]) * (2.0**-8)
    scaled += spread * torch.randn(scaled.shape, generator=generator)
    scaled[:, 1:].masked_fill_(torch.rand(scaled[:, 1:].shape, generator=generator) < impossible, -torch.inf)
    before = scaled.clone()
    restricted = restricted_by(scaled, samplings)
    assert torch.equal(scaled, before)
    for row, sampling in enumerate(samplings):
        assert torch.equal(restricted[row].isfinite(), hugging_face(scaled[row], sampling).isfinite())
        kept = restricted[row].isfinite()
        assert torch.equal(restricted[row][kept], scaled[row][kept])


def test_rows_without_restrictions_are_returned_as_they_are() -> None:
    scaled = torch.randn(3, 10)
    assert restricted_by(scaled, [Sampling(temperature=1.0)] * 3) is scaled


def test_a_flat_row_needs_a_look_beyond_the_likeliest() -> None:
    scaled = torch.linspace(0, 1e-3, 4000)[None]
    kept = restricted_by(scaled, [Sampling(temperature=1.0, top_p=0.75)])[0].isfinite()
    assert kept.sum().item() == pytest.approx(3000, abs=2)
    assert kept[-3000:].float().mean() > 0.999


def test_ties_with_the_last_token_allowed_stay() -> None:
    scaled = torch.tensor([[3.0, 1.0, 1.0, 0.0]])
    assert restricted_by(scaled, [Sampling(temperature=1.0, top_k=2)])[0].isfinite().tolist() == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-9), Sampling(1.0, min_p=1.0)])
def test_the_likeliest_token_always_stays(sampling: Sampling) -> None:
    scaled = torch.randn(4, 500)
    kept = restricted_by(scaled, [sampling] * 4).isfinite()
    assert torch.equal(kept.nonzero()[:, 1], scaled.argmax(dim=1))


@given(st.lists(SAMPLINGS, min_size=2, max_size=5), st.sampled_from([-torch.inf, torch.nan, torch.inf]), st.data())
@settings(deadline=None, max_examples=100)
def test_a_row_without_numbers_stays_one_and_changes_no_other(
    samplings: list[Sampling], number: float, data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(samplings) - 1))
    scaled = torch.randn(len(samplings), 500)
    scaled[which] = number
    restricted = restricted_by(scaled, samplings)
    assert not restricted[which].amax().isfinite()
    for row in set(range(len(samplings))) - {which}:
        assert torch.equal(restricted[row], restricted_by(scaled[row : row + 1], samplings[row : row + 1])[0])


def test_a_greedy_session_has_no_filters() -> None:
    samplings = [Sampling(top_k=3, top_p=0.5, min_p=0.1), Sampling(1.0, seed=3)]
    filters = Filters.of(samplings, 16, torch.device("cpu"))
    assert filters.counts is None and filters.masses is None and filters.margins is None

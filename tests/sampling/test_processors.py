"""Bias and penalties do what transformers' own processors do, row by row, and count what is drafted beside what is committed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit import sampling
from specsplit.errors import InvalidRequest
from specsplit.sampling import SamplingBatch, TokenCounts
from specsplit.values import MAX_BIASES, Sampling
from tests.support.sampling import counted, expected

VOCAB = 40
CPU = torch.device("cpu")
token_ids = st.integers(0, VOCAB - 1)
texts = st.lists(token_ids, max_size=30)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 3.0]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 9),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-100.0, -1.5, 0.25, 100.0]), max_size=5).map(
        lambda biases: tuple(biases.items())
    ),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5, 1e6, 1e-6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 2.0, -0.7]),
)


@dataclass(frozen=True)
class Asked:
    """One session, and the tokens on the way to each of its rows."""

    sampling: Sampling
    prompt: list[int]
    output: list[int]
    paths: list[list[int]]


sessions = st.builds(
    Asked,
    samplings,
    st.lists(token_ids, min_size=1, max_size=30),
    texts,
    st.lists(st.lists(token_ids, max_size=6), min_size=1, max_size=4),
)


def batched(
    asked: list[Asked], counts: list[TokenCounts]
) -> tuple[SamplingBatch, list[int], list[list[int]], list[int]]:
    """(batch, owners, paths, positions) of their rows, one session after the other."""
    batch = SamplingBatch([each.sampling for each in asked], VOCAB, CPU, counts)
    owners = [owner for owner, each in enumerate(asked) for _ in each.paths]
    paths = [path for each in asked for path in each.paths]
    lengths = [len(each.prompt) + len(each.output) + len(path) for each in asked for path in each.paths]
    return batch, owners, paths, lengths


@given(st.lists(sessions, min_size=1, max_size=5), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 99))
@settings(deadline=None, max_examples=150)
def test_rows_are_what_transformers_makes_of_their_texts(asked: list[Asked], dtype: torch.dtype, seed: int) -> None:
    counts = [counted(each.prompt + each.output, len(each.prompt)) for each in asked]
    batch, owners, paths, positions = batched(asked, counts)
    logits = (torch.randn(len(owners), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)
    before = logits.clone()
    found = sampling.perturb(logits, batch.rows(owners), positions, paths)
    picked = sampling.pick(logits, batch.rows(owners), positions, paths)
    assert torch.equal(logits, before)
    for row, (owner, path) in enumerate(zip(owners, paths, strict=True)):
        each = asked[owner]
        alone = expected(logits[row : row + 1], each.sampling, each.prompt + each.output + path, len(each.prompt))[0]
        torch.testing.assert_close(found[row].float(), alone, rtol=1e-5, atol=1e-5)
        assert picked[row] == int(found[row].argmax())


@given(st.lists(token_ids, min_size=1, max_size=20), st.lists(st.lists(token_ids, min_size=1, max_size=5), max_size=8))
@settings(deadline=None, max_examples=100)
def test_counts_that_follow_a_text_are_those_of_the_whole(prompt: list[int], steps: list[list[int]]) -> None:
    counts = counted(prompt, len(prompt))
    text = list(prompt)
    for step in steps:
        tokens, times = counts.tensors(CPU)
        assert dict(zip(tokens.tolist(), times.tolist(), strict=True)) == {
            token: text[len(prompt) :].count(token) for token in text
        }
        counts.add(step)
        text += step
    assert len(counts) == len(text)
    whole, found = counted(text, len(prompt)).tensors(CPU), counts.tensors(CPU)
    assert [each.tolist() for each in whole] == [each.tolist() for each in found]
    assert [counts.generated(token) for token in range(VOCAB)] == [text[len(prompt) :].count(t) for t in range(VOCAB)]


def test_a_token_that_is_drafted_twice_on_a_path_counts_twice_and_one_on_another_path_not_at_all() -> None:
    asked = Sampling(frequency_penalty=0.5, presence_penalty=1.0)
    batch = SamplingBatch([asked], VOCAB, CPU, [counted([1, 2, 3, 3], 3)])
    found = sampling.perturb(torch.zeros(3, VOCAB), batch.rows([0, 0, 0]), [4, 7, 5], [[], [3, 7, 7], [8]])
    assert [found[row, [1, 3, 7, 8]].tolist() for row in range(3)] == [
        [0.0, -1.5, 0.0, 0.0],
        [0.0, -2.0, -2.0, 0.0],
        [0.0, -1.5, 0.0, -1.5],
    ]


def test_a_greedy_pick_is_the_argmax_of_what_penalties_leave() -> None:
    logits = torch.tensor([[3.0, 2.9, -1.0, 0.0]])
    for asked, token in (
        (Sampling(repetition_penalty=1.1), 1),
        (Sampling(presence_penalty=0.2), 1),
        (Sampling(presence_penalty=0.05), 0),
        (Sampling(logit_bias=((2, 5.0),)), 2),
        (Sampling(logit_bias=((0, -100.0),)), 1),
    ):
        batch = SamplingBatch([asked], 4, CPU, [counted([3, 0], 1)])
        assert sampling.pick(logits, batch.rows([0]), [2], [[]]) == [token]


def test_a_row_without_numbers_has_no_pick_with_penalties_either_and_changes_no_other() -> None:
    asked = Sampling(repetition_penalty=1.5, frequency_penalty=1.0, logit_bias=((3, 1.0),))
    batch = SamplingBatch([asked, asked], VOCAB, CPU, [counted([1, 2], 1), counted([1, 2], 1)])
    logits = torch.stack([torch.full((VOCAB,), torch.nan), torch.arange(VOCAB).float()])
    assert sampling.pick(logits, batch.rows([0, 1]), [2, 2], [[], []]) == [None, VOCAB - 1]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"logit_bias": ((3, 100.5),)}, "logit_bias[3]"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias[3]"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "logit_bias"),
        ({"logit_bias": tuple((token, 1.0) for token in range(MAX_BIASES + 1))}, "logit_bias"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling(**options)  # pyright: ignore[reportArgumentType]
    assert caught.value.field == field

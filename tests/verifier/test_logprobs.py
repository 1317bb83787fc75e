"""Log-probabilities are those of the target's own logits, with any sampling, at every token that is committed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from specsplit.errors import InvalidRequest
from specsplit.model import RowPages
from specsplit.sessions import DecodeRequest, Tokens
from specsplit.speculation import Draft
from specsplit.values import MAX_LOGPROBS, Sampling, Stopping, TokenLogprob
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import Accepted, TreeInput
from specsplit_verifier.target.logprobs import logprobs_of, with_logprobs
from tests.support.rounding import APART_ONCE, assert_same_log_probabilities
from tests.support.toys import random_target
from tests.verifier.conftest import verifier_over

VOCAB = 16
PROMPT = [3, 7, 1, 3, 7, 1, 3]
SAMPLINGS = [Sampling(), Sampling(0.7, top_k=5, top_p=0.9, min_p=0.01, seed=9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_target(tmp_path_factory.mktemp("random"), VOCAB)


def expected(folder: Path, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """log_softmax of transformers' own logits in the place of each token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float(), dim=-1)


async def decoded(verifier: Verifier, request: DecodeRequest) -> tuple[list[int], list[TokenLogprob]]:
    steps = [event async for event in verifier.decode(request) if isinstance(event, Tokens)]
    return [t for step in steps for t in step.tokens], [each for step in steps for each in step.logprobs]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("most", [0, 1, 3, 20])
async def test_they_are_those_of_transformers_before_temperature_and_filters(
    folder: Path, sampling: Sampling, most: int
) -> None:
    async with verifier_over(folder) as verifier:
        tokens, logprobs = await decoded(verifier, DecodeRequest("r", PROMPT, sampling, Stopping(40), logprobs=most))
    own = expected(folder, PROMPT, tokens)
    assert [each.token for each in logprobs] == tokens and len(tokens) == 40
    for each, row in zip(logprobs, own, strict=True):
        found = [each.logprob, *(top.logprob for top in each.top)]
        likeliest = row.sort(descending=True).values[:most].tolist()
        assert_same_log_probabilities(found, [row[each.token].item(), *likeliest], len(row))
        assert_same_log_probabilities(found[1:], [row[top.token].item() for top in each.top], len(row))


async def test_a_session_that_asks_for_none_gets_none_beside_one_that_does(folder: Path) -> None:
    async with verifier_over(folder) as verifier:
        asked = verifier.decode(DecodeRequest("a", PROMPT, stopping=Stopping(200), logprobs=2))
        assert isinstance(await anext(asked), Tokens)
        tokens, logprobs = await decoded(verifier, DecodeRequest("b", PROMPT, stopping=Stopping(9)))
        assert len(tokens) == 9 and logprobs == []
        await asked.aclose()


async def test_they_are_cut_with_the_tokens_at_a_stop(folder: Path) -> None:
    async with verifier_over(folder) as verifier:
        free, _ = await decoded(verifier, DecodeRequest("r", PROMPT, stopping=Stopping(12)))
        stop = free[5]
        request = DecodeRequest("r", PROMPT, stopping=Stopping(12, (stop,)), logprobs=0)
        tokens, logprobs = await decoded(verifier, request)
    assert tokens == free[: free.index(stop)]
    assert [each.token for each in logprobs] == tokens


@pytest.mark.parametrize("asked", [-1, 21])
def test_a_number_out_of_range_is_refused_by_name(asked: int) -> None:
    with pytest.raises(InvalidRequest, match=f"logprobs: is {asked}, expected 0..20 or nothing"):
        DecodeRequest("r", PROMPT, logprobs=asked)


def test_a_token_that_the_model_rules_out_is_told_with_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    (told,) = logprobs_of(logits, [0], 3)
    assert told.logprob == pytest.approx(math.log(0.5))
    assert told.top[2] == TokenLogprob(1, -math.inf)


def tree(session: int, draft: Draft, wanted: int | None) -> TreeInput:
    pages = RowPages.alone(np.arange(len(draft.tokens)), len(draft.tokens))
    return TreeInput.tree(
        draft.tokens, draft.parents, pages, session=session, draft=draft, sampling=Sampling(), logprobs=wanted
    )


@given(
    wanted=st.lists(st.none() | st.integers(0, MAX_LOGPROBS), min_size=1, max_size=5),
    lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    lost=st.integers(0, 9),
)
def test_every_tree_gets_those_of_its_own_path_and_no_others(
    wanted: list[int | None], lengths: list[int], lost: int
) -> None:
    """Chains of drafts, all of them accepted; tree `lost` has no pick."""
    trees: list[TreeInput] = []
    accepted: dict[int, Accepted] = {}
    for session, most in enumerate(wanted):
        size = lengths[session]
        tokens = tuple(range(session, session + size))
        draft = Draft(tuple(range(size)), tokens, tuple(range(-1, size - 1)), tuple(range(size)), (0.0,) * size)
        trees.append(tree(session, draft, most))
        if session != lost:
            accepted[session] = Accepted(range(size), bonus=VOCAB - 1)
    logits = torch.randn(sum(lengths[: len(wanted)]), VOCAB, generator=torch.Generator().manual_seed(1))
    told = with_logprobs(accepted, trees, logits)
    assert told.keys() == accepted.keys()
    rows = iter(torch.log_softmax(logits, dim=-1))
    for each in trees:
        own = [next(rows) for _ in each.draft.tokens]
        made = told.get(each.session)
        if made is None or each.logprobs is None:
            assert made is None or made.logprobs == ()
            continue
        commits = made.commits(each.draft)
        assert [one.token for one in made.logprobs] == commits
        expected = [row[token].item() for row, token in zip(own, commits, strict=True)]
        assert_same_log_probabilities([one.logprob for one in made.logprobs], expected, VOCAB, APART_ONCE)
        assert {len(one.top) for one in made.logprobs} == {min(each.logprobs, VOCAB)}

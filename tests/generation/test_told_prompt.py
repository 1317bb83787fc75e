"""What is told of a prompt reaches a caller once and without a gap, however many verifiers tell of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import Incompatible
from specsplit.generation.told_prompt import ToldPrompt
from specsplit.values import PromptLogprobs, TokenLogprob


def piece(first: int, end: int) -> PromptLogprobs:
    """Each token is its position, and so is its log-probability."""
    tokens = tuple(range(first, end))
    return PromptLogprobs(first, tokens, tuple(TokenLogprob(each, -each) for each in tokens if each))


@given(length=st.integers(1, 40), cuts=st.lists(st.sets(st.integers(1, 40), max_size=6), max_size=4))
def test_the_tokens_of_all_verifiers_together_come_once_and_in_order(length: int, cuts: list[set[int]]) -> None:
    """Each verifier begins at the first token and is lost behind its last piece; the last one is not."""
    told, came = ToldPrompt(length), list[PromptLogprobs]()
    for ends in (*cuts, {length}):
        within = sorted(end for end in ends if end <= length)
        news = [told.take(piece(first, end)) for first, end in zip([0, *within], within, strict=False)]
        came += [new for new in news if new is not None]
    assert [token for each in came for token in each.tokens] == list(range(length))
    assert came == [piece(each.first, each.end) for each in came]
    told.check_whole()


@pytest.mark.parametrize(("first", "end"), [(1, 3), (0, 6), (5, 6)])
def test_a_gap_and_more_than_the_prompt_are_refused(first: int, end: int) -> None:
    with pytest.raises(
        Incompatible, match=f"tokens {first} to {end} of the prompt, expected those from 0 to 5; update"
    ):
        ToldPrompt(5).take(piece(first, end))


def test_output_before_the_whole_prompt_is_refused_and_of_none_nothing_is_expected() -> None:
    told = ToldPrompt(5)
    told.take(piece(0, 4))
    with pytest.raises(Incompatible, match="of 4 of 5 tokens of the prompt: one of an older build tells none"):
        told.check_whole()
    ToldPrompt().check_whole()

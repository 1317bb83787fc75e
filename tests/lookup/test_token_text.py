from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.lookup.token_text import LONGEST, TokenText

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def common_suffix(text: Sequence[int], end: int, ending: Sequence[int]) -> int:
    """Count the tokens before place `end` that read as another text ends."""
    length = 0
    while length < min(end, len(ending), LONGEST) and text[end - 1 - length] == ending[-1 - length]:
        length += 1
    return length


@given(TEXTS, TEXTS, st.integers(1, 8), st.booleans())
def test_matches_are_the_longest_of_the_definition_and_of_equals_the_latest(
    words: list[int], others: list[int], most: int, own: bool
) -> None:
    text = TokenText(words)
    ending = text.ending if own else TokenText(others).ending
    lengths = {end: common_suffix(words, end, words if own else others) for end in range(1, len(words))}
    best = sorted((end for end in lengths if lengths[end]), key=lambda end: (-lengths[end], -end))[:most]
    found = text.matches(ending, most)
    assert sorted(zip((found.ends - LONGEST).tolist(), found.lengths.tolist(), strict=True)) == sorted(
        (end, lengths[end]) for end in best
    )


@given(st.lists(st.lists(st.integers(0, 9), max_size=300), max_size=6), st.sampled_from([None, 1, 7, 64]))
def test_a_text_holds_the_latest_of_what_was_appended_and_no_more_than_it_may(
    parts: list[list[int]], most: int | None
) -> None:
    text = TokenText((), most)
    for part in parts:
        text.append(part)
    whole = [token for part in parts for token in part]
    kept = text.tokens.tolist()
    assert kept == whole[len(whole) - len(kept) :]
    if most is None:
        assert kept == whole
    else:
        assert min(len(whole), most // 2) <= len(kept) <= most


@given(TEXTS, st.integers(1, 8))
def test_what_follows_a_match_is_the_text_and_then_what_is_drafted(words: list[int], count: int) -> None:
    text = TokenText(words)
    for place in range(1, len(words)):
        (found,) = text.following(np.array([LONGEST + place]), count).tolist()
        after = words[place : place + count]
        assert found == [*after, *(-2 - drafted for drafted in range(count - len(after)))]


@pytest.mark.parametrize("words", [[7] * 40_000, list(range(500)) * 80])
def test_a_long_text_that_repeats_itself_is_matched_at_its_latest_places(words: list[int]) -> None:
    text = TokenText(words)
    found = text.matches(text.ending, 16)
    assert found.lengths.tolist() == [LONGEST] * 16
    period = 1 if words[0] == words[1] else 500
    assert (found.ends - LONGEST).tolist() == [len(words) - period * back for back in range(16, 0, -1)]

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_drafter.drafts.proposer import Children
from specsplit_drafter.kinds.ngram import NgramProposer, rank
from specsplit_drafter.kinds.suffix import LONGEST, Context, SuffixIndex
from tests.drafter.toys import Handled

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def all_matches(sequence: Sequence[int], committed: int) -> dict[int, int]:
    """By the definition: every earlier position that reads the same, and for how many tokens."""
    end, found = len(sequence) - 1, {}
    for position in range(end):
        length = 0
        while length <= position and length < LONGEST and sequence[position - length] == sequence[end - length]:
            length += 1
        starts_committed = position - length + 1 < committed
        if length and starts_committed:
            found[position] = length
    return found


def context_of(index: SuffixIndex, path: Sequence[int]) -> Context:
    context = index.committed
    for token in path:
        context = index.child(context, token)
    return context


@given(TEXTS, st.lists(st.integers(0, 3), max_size=6))
def test_matches_along_a_path_are_those_of_the_definition(text: list[int], path: list[int]) -> None:
    matches = dict(context_of(SuffixIndex(text, recent=100), path).matches)
    assert matches == all_matches([*text, *path], len(text))


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_an_index_that_grew_is_the_index_of_the_whole_text(parts: list[list[int]]) -> None:
    grown = SuffixIndex(parts[0])
    for part in parts[1:]:
        grown.extend(part)
    whole = SuffixIndex([token for part in parts for token in part])
    assert grown.committed == whole.committed


@given(TEXTS, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 6))
def test_candidates_are_distinct_descending_and_sum_to_at_most_one(
    text: list[int], path: list[int], count: int
) -> None:
    index = SuffixIndex(text)
    found = rank(index, context_of(index, path), count)
    probabilities = np.exp([raw for _, raw in found])
    assert len({token for token, _ in found}) == len(found) <= count
    assert (np.diff(probabilities) <= 0).all()
    assert probabilities.sum() <= 1 + 1e-9


def ranked(text: Sequence[int]) -> list[tuple[int, float]]:
    index = SuffixIndex(text)
    return [(token, round(math.exp(raw), 4)) for token, raw in rank(index, index.committed, 8)]


def test_the_longest_match_speaks_first_and_shorter_ones_get_what_it_leaves() -> None:
    # "1 2" was followed by 3; "2" alone also by 4. One match of length 2: 1 / (1 + 1/2) of the whole;
    # then one of length 1: 1 / (1 + 1) of what is left.
    assert ranked([1, 2, 3, 9, 2, 4, 1, 2]) == [(3, 0.6667), (4, 0.1667)]


def test_what_followed_more_often_is_likelier() -> None:
    assert ranked([1, 5, 0, 1, 5, 2, 1, 6, 3, 1]) == [(5, 0.4), (6, 0.2)]


def test_a_token_that_a_longer_match_named_is_not_named_again() -> None:
    assert ranked([1, 2, 3, 2, 3, 1, 2]) == [(3, 0.6667)]


def test_of_equally_likely_ones_the_latest_seen_comes_first() -> None:
    assert [token for token, _ in ranked([1, 5, 1, 6, 1])] == [6, 5]


def test_text_never_seen_has_no_children() -> None:
    assert ranked([1, 2, 3]) == []


def test_a_long_match_is_surer_than_a_short_one() -> None:
    (_, short), *_ = ranked([1, 2, 1])
    (_, long), *_ = ranked([7, 8, 9, 1, 2, 7, 8, 9, 1])
    assert short < long


def expand(session: Handled, *ids: int) -> list[int]:
    found = session.expand(*ids)
    assert isinstance(found, Children)
    return found.tokens[0].tolist()


def test_a_tree_follows_the_repetition_and_goes_on_into_its_own_drafts() -> None:
    session = Handled(NgramProposer(children=4), [1, 2, 3, 1, 2])
    session.grow((0, 3), (1, 1), (2, 2))
    assert expand(session) == [3]
    assert expand(session, 1) == [1]
    assert expand(session, 2) == [2]
    assert expand(session, 3)[0] == 3  # the tokens after this match are drafts themselves


@pytest.mark.parametrize("hit", [True, False])
def test_a_commit_extends_the_index_and_survivors_can_be_built_upon(hit: bool) -> None:
    proposer = NgramProposer(children=4)
    session = Handled(proposer, [1, 2, 3, 1, 2])
    session.grow((0, 3), (1, 1), (2, 2))
    expand(session)
    expand(session, 1)
    expand(session, 2)
    if hit:
        session.commit(0, 3)
        assert expand(session, 3) == [3]
    else:
        session.commit(0, 2)
        assert expand(session) == [2, 3]
    proposer.close(session.key)


def test_a_session_that_repeats_one_token_stays_cheap_and_predicts_it() -> None:
    index = SuffixIndex([7] * 5000)
    assert len(index.committed.matches) <= 64
    assert [token for token, _ in ranked([7] * 50)] == [7]

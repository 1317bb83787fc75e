from __future__ import annotations

import math
from collections.abc import Sequence
from operator import ge

from hypothesis import example, given
from hypothesis import strategies as st

from specsplit.lookup import DrawnTree
from specsplit.lookup.continuations import DEEPEST, MOST_NODES, Continuation, behind, continuations, draw
from specsplit.lookup.token_text import TokenText

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def drawn(words: Sequence[int], children: int = 8) -> DrawnTree:
    text = TokenText(words)
    return draw(continuations(text, text.matches(text.ending, 16)), children)


def ranked(words: Sequence[int]) -> list[tuple[int, float]]:
    """The candidates of the root, and their probabilities."""
    return [(token, round(math.exp(raw), 4)) for token, raw in drawn(words).candidates[0]]


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


def test_a_match_is_followed_for_eight_tokens_by_each_that_matched() -> None:
    once = [Continuation(1, list(range(DEEPEST)))]
    assert behind(tuple(range(7)), once, 4)
    assert not behind(tuple(range(8)), once, 4)
    assert behind(tuple(range(8)), [Continuation(2, list(range(DEEPEST)))], 4)


def test_a_tree_follows_the_repetition_and_goes_on_into_its_own_drafts() -> None:
    tree = drawn([1, 2, 3, 1, 2])
    path = [row[0][0] for row in tree.candidates[:7]]
    assert path == [3, 1, 2, 3, 1, 2, 3]


@given(TEXTS, st.integers(1, 6))
def test_a_drawn_tree_names_parents_first_and_its_candidates_are_distinct_descending_and_sum_to_at_most_one(
    words: list[int], count: int
) -> None:
    tree = drawn(words, count)
    assert tree.above[0] == -1
    for row, (above, token) in enumerate(zip(tree.above, tree.tokens, strict=True)):
        assert above < row
        assert row == 0 or token in dict(tree.candidates[above])
    links = list(zip(tree.above, tree.tokens, strict=True))
    assert len(set(links)) == len(links)
    for candidates in tree.candidates:
        probabilities = [math.exp(raw) for _, raw in candidates]
        assert len(dict(candidates)) == len(candidates) <= count
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) <= 1 + 1e-9
    assert len(tree.above) <= MOST_NODES + 1


@given(TEXTS, st.integers(1, 6), st.integers(1, 6))
@example([0, 0, 0, 2, 0, 0, 0, 2, 0], 2, 5)
def test_bounds_leave_the_likeliest_nodes_as_they_are_or_make_room_for_likelier_ones(
    words: list[int], depth: int, nodes: int
) -> None:
    """A tree without bounds that goes deep may have no room for all that lies within a bound of depth."""
    text = TokenText(words)
    found = continuations(text, text.matches(text.ending, 16))

    def likeliest(tree: DrawnTree) -> list[float]:
        survivals = [0.0]
        levels = [0]
        below: dict[tuple[int, int], tuple[float, int]] = {}
        for row, (above, token, candidates) in enumerate(zip(*tree, strict=True)):
            survival, level = below[above, token] if above >= 0 else (0.0, 0)
            below |= {(row, each): (survival + raw, level + 1) for each, raw in candidates}
            survivals += [survival + raw for _, raw in candidates]
            levels += [level + 1 for _ in candidates]
        kept = [survival for survival, level in zip(survivals, levels, strict=True) if level <= depth]
        return sorted(kept, reverse=True)[: nodes + 1]

    bounded = draw(found, 4, depth=depth, nodes=nodes)
    unbounded = draw(found, 4)
    here, there = likeliest(bounded), likeliest(unbounded)
    assert len(here) >= len(there) and all(map(ge, here, there))
    if sum(map(len, unbounded.candidates)) < MOST_NODES:
        assert here == there
    assert len(bounded.above) <= nodes

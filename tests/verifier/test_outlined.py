"""Of what a grammar nearly forces all is drafted, beside what a drafter has there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.grammar import GrammarState
from specsplit.speculation import Draft
from specsplit.values import Constraint, ConstraintKind
from specsplit_verifier.sessions.forced import EDGE, FIRST_ID, UNKNOWN_ID
from specsplit_verifier.sessions.legal import legal
from specsplit_verifier.sessions.outlined import grammar_first
from specsplit_verifier.sessions.tree_limits import TreeLimits
from tests.support.grammars import LETTERS, grammars, write_letters
from tests.support.kernels import trees

VOCAB = 16
ROOT = Draft.root_alone(9, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"), VOCAB)


def within(state: GrammarState, tokens: int = 16, topk: int = 4, steps: int = 8) -> TreeLimits:
    return TreeLimits(tokens, topk, steps, state.forced, state)


def begun(folder: Path, text: str) -> GrammarState:
    return grammars(folder, VOCAB).begin(Constraint(ConstraintKind.REGEX, text))


def paths(draft: Draft) -> dict[str, float]:
    """Every path below the root in letters, with its edge."""
    found = {0: ""}
    for index, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if index:
            found[index] = found[parent] + chr(ord("a") + token)
    return {found[index]: edge for index, edge in enumerate(draft.edges) if index}


def test_without_a_drafter_all_are_equally_likely_behind_what_is_forced(folder: Path) -> None:
    state = begun(folder, "b(ca|da)[a-p]*")
    found = grammar_first(ROOT, within(state))
    half = EDGE + math.log(0.5)
    assert paths(found) == pytest.approx({"b": EDGE, "bc": half, "bd": half, "bca": EDGE, "bda": EDGE})
    assert min(found.ids[1:]) > FIRST_ID and len({*found.ids}) == 6
    assert found.positions == [4, 5, 6, 6, 7, 7]


def test_what_a_drafter_names_is_as_likely_as_it_says_and_the_others_share_what_it_leaves(folder: Path) -> None:
    state = begun(folder, "(ca|da|ea)[a-p]*")
    draft = Draft([0, 1, 2, 3], [9, 2, 0, 7], [-1, 0, 1, 2], [4, 5, 6, 7], [0.0, -0.5, -0.9, -1.2])
    found = paths(grammar_first(draft, within(state)))
    others = EDGE + math.log((1 - math.exp(-0.5)) / 2)
    assert found == pytest.approx(
        {"c": -0.5, "ca": EDGE, "cah": -0.3, "d": others, "e": others, "da": EDGE, "ea": EDGE}
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((3, 4, 8), {"b", "bc"}),
        ((16, 1, 8), {"b", "bc", "bca"}),
        ((16, 4, 2), {"b", "bc", "bd"}),
        ((16, 4, 1), {"b"}),
        ((1, 4, 8), set[str]()),
        ((16, 4, 0), set[str]()),
    ],
)
def test_no_more_is_drafted_than_a_step_may_take(
    folder: Path, limits: tuple[int, int, int], expected: set[str]
) -> None:
    assert paths(grammar_first(ROOT, within(begun(folder, "b(ca|da)[a-p]*"), *limits))).keys() == expected


@given(st.data())
def test_what_is_drafted_may_follow_and_what_the_drafter_lacks_has_none_of_its_nodes_below(
    folder: Path, data: st.DataObject
) -> None:
    state = grammars(folder, VOCAB).begin(data.draw(st.sampled_from(LETTERS)), ())
    limits = within(state, data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6)))
    own = legal(data.draw(trees(VOCAB, 6)).likeliest(limits.num_draft_tokens, limits.topk), limits)
    found = grammar_first(own, limits)
    assert len(found.tokens) <= limits.num_draft_tokens and found.ids[0] == own.ids[0]
    assert state.legal(found.tokens, found.parents) == [*range(len(found.tokens))]
    for index, parent in enumerate(found.parents[1:], 1):
        assert 0 <= parent < index and found.log_survivals[index] <= found.log_survivals[parent]
        assert found.ids[index] >= UNKNOWN_ID or found.ids[parent] < UNKNOWN_ID
    links = [*zip(found.parents, found.tokens, strict=True)]
    assert len({*links}) == len(links) and len({*found.ids}) == len(found.ids)

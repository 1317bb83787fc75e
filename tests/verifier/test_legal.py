"""A step takes nothing that a grammar forbids, and what is forced does not count among the levels of a plan."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.grammar import GrammarState
from specsplit.speculation import Draft, Grow, Mirror
from specsplit.values import Constraint, ConstraintKind, Plan
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.legal import legal, looked_at
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import WaitPolicy
from tests.support.grammars import LETTERS, allowed_of, grammars, states, write_letters
from tests.support.kernels import trees
from tests.support.sessions import session_of

VOCAB = 16
SERIAL = Plan(num_steps=4, topk=4, num_draft_tokens=6, wait_budget_us=1_000_000, draft_ahead=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(tmp_path_factory.mktemp("letters"), VOCAB)


def regex(folder: Path, text: str) -> GrammarState:
    return grammars(folder, VOCAB).begin(Constraint(ConstraintKind.REGEX, text), [])


def test_the_best_that_is_allowed_is_taken_of_twice_as_many(folder: Path) -> None:
    """Of b or c and then d: 1, below it 3, and 2 stand behind what is forbidden."""
    state = regex(folder, "(b|c)d")
    tokens, parents = [7, 8, 1, 3, 3, 2], [0, 1, 0, 2, 3, 0]
    grow = Grow(0, range(1, 7), parents, tokens, [-0.1, -0.1, -0.3, -0.1, -0.1, -2.0], resting=True)

    def taken(limits: TreeLimits) -> Draft:
        session = DraftSession("d", Mirror(1, 0, 9, 64, VOCAB), WaitPolicy())
        session.grow(grow, 0.0)
        session.apply_grows(limits, prefilling=False)
        return session.take(0, 9, limits)

    assert taken(TreeLimits(4, 4, 4)).tokens == [0, 7, 8, 1]
    found = taken(TreeLimits(4, 4, 4, (), state))
    assert found.tokens == [0, 1, 3, 2] and found.parents == [-1, 0, 1, 0]
    assert found.ids == [0, 3, 5, 6] and found.log_survivals == sorted(found.log_survivals, reverse=True)


@given(st.data())
def test_what_is_left_is_what_masks_allow_and_all_of_it(folder: Path, data: st.DataObject) -> None:
    state = data.draw(states(grammars(folder, VOCAB), LETTERS, VOCAB))
    draft = data.draw(trees(VOCAB, 6))
    limits = TreeLimits(data.draw(st.integers(1, 8)), 4, 8, (), state)
    assert looked_at(limits).num_draft_tokens == 2 * limits.num_draft_tokens
    words = state.masks(draft.tokens, draft.parents)
    found = legal(draft, limits)
    rows = {0: 0}
    for place, parent in enumerate(found.parents):
        if parent >= 0:
            above = draft.parents[draft.ids.index(found.ids[place])]
            assert above == rows[parent] and found.tokens[place] in allowed_of(words[above], VOCAB)
            rows[place] = draft.ids.index(found.ids[place])
    assert [*found.ids] == [draft.ids[row] for row in rows.values()] and len(found.ids) <= limits.num_draft_tokens
    whole = legal(draft, limits._replace(num_draft_tokens=99))
    assert [*whole.ids][: len(found.ids)] == [*found.ids]
    assert legal(whole, limits._replace(num_draft_tokens=99)) == whole


def test_a_draft_that_is_held_to_nothing_is_taken_as_it_is() -> None:
    draft = Draft([0, 1], [5, 6], [-1, 0], [1, 2], [0.0, -0.5])
    assert legal(draft, TreeLimits(8, 4, 4)) is draft and looked_at(TreeLimits(8, 4, 4)) == TreeLimits(8, 4, 4)


@pytest.mark.parametrize(("most", "num_steps"), [(50, 9), (6, 5)])
def test_what_is_forced_does_not_count_among_the_steps_of_a_plan(folder: Path, most: int, num_steps: int) -> None:
    """Of five forced tokens, and four steps; no level is deeper than what may still be generated."""
    session = session_of(1, plan=SERIAL, most=most)
    session.grammar = regex(folder, "abcde[a-p]*")
    assert session.tree_limits.num_steps == num_steps and session.tree_limits.forced == [0, 1, 2, 3, 4]
    session.plan = replace(SERIAL, num_steps=0)
    assert session.tree_limits.num_steps == 0


def test_serial_drafting_waits_beside_what_is_forced_where_that_leaves_room() -> None:
    session = DraftSession("d", Mirror(1, 0, 9, 64, VOCAB), WaitPolicy())
    session.begin(9, 0.0)
    assert session.pause(0.0, SERIAL, TreeLimits(6, 4, 8, (1, 2))) > 0
    assert session.pause(0.0, SERIAL, TreeLimits(6, 4, 8, (1, 2, 3, 4, 5))) == 0
    ahead = replace(SERIAL, draft_ahead=True)
    assert session.prospect(0.0, ahead, TreeLimits(6, 4, 8, (1, 2))) is None
    assert math.isfinite(session.pause(0.0, SERIAL, TreeLimits(6, 4, 8)))

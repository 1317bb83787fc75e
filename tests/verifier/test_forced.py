"""What a grammar forces is drafted by the verifier, before what a drafter has, and the drafter hears of it as of any other token."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.client import make_request
from specsplit.clock import ManualClock
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Draft, Grow, Mirror, Original
from specsplit.text.tokenizer import Tokenizer
from specsplit.values import (
    Constraint,
    ConstraintKind,
    Endpoint,
    FinishReason,
    PlanChanges,
    Sampling,
    Stopping,
    Vocabulary,
)
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import Accepted, TreeView
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.drafter_record import DrafterRecord
from specsplit_verifier.sessions.forced import EDGE, FIRST_ID, forced_first, forced_last, with_unknown
from specsplit_verifier.sessions.lookup_beside import LookupBeside, Together
from specsplit_verifier.sessions.lookup_standing import LookupPrice
from specsplit_verifier.sessions.lookup_tree import LookupTexts, LookupTree
from specsplit_verifier.sessions.tree_limits import TreeLimits
from specsplit_verifier.sessions.wait_policy import WaitPolicy
from tests.support.drafting import POCKET, endpoint_of, pocket_drafters
from tests.support.grammars import grammars, write_letters
from tests.verifier.conftest import decode, verifier_over

pytestmark = pytest.mark.usefixtures("forked")

DRAFT = Draft([0, 1, 2, 3, 4], [9, 5, 6, 7, 8], [-1, 0, 0, 1, 3], [4, 5, 5, 6, 7], [0.0, -0.1, -2.0, -0.4, -0.9])
"""9 and behind it 5 7 8 or 6."""


def limits(*forced: int, tokens: int = 8, steps: int = 4) -> TreeLimits:
    return TreeLimits(tokens, 4, steps, forced)


def test_forced_tokens_come_first_and_what_follows_them_behind() -> None:
    """Of 5 7 the draft has both, and of what it has besides only 8 follows."""
    assert forced_first(DRAFT, limits()) is DRAFT
    found = forced_first(DRAFT, limits(5, 7))
    assert (found.ids, found.tokens, found.parents) == ([0, 1, 3, 4], [9, 5, 7, 8], [-1, 0, 1, 2])
    assert found.positions == [4, 5, 6, 7]
    assert found.log_survivals == pytest.approx([0.0, EDGE, 2 * EDGE, 2 * EDGE - 0.5])


def test_what_the_draft_lacks_has_ids_of_its_own() -> None:
    found = forced_first(DRAFT, limits(5, 2, 3))
    assert (found.ids, found.tokens) == ([0, 1, FIRST_ID + 2, FIRST_ID + 3], [9, 5, 2, 3])
    view = with_unknown(TreeView([0, 1, 2], [-1, 0, 0], [9, 5, 6], [0.0, -0.1, -2.0]), found)
    assert (view.ids, view.parents) == ([0, 1, 2, FIRST_ID + 2, FIRST_ID + 3], [-1, 0, 0, 1, 3])
    assert (view.tokens, view.edges) == ([9, 5, 6, 2, 3], pytest.approx([0.0, -0.1, -2.0, EDGE, EDGE]))


@pytest.mark.parametrize(("tokens", "steps", "count"), [(3, 4, 2), (8, 1, 1), (1, 4, 0), (8, 0, 0)])
def test_no_more_is_forced_than_a_step_may_take(tokens: int, steps: int, count: int) -> None:
    found = forced_first(Draft.root_alone(9, 4), limits(5, 7, 8, tokens=tokens, steps=steps))
    assert found.tokens == [9, 5, 7, 8][: 1 + count] or found == Draft.root_alone(9, 4)
    assert len(found.tokens) == 1 + count


def test_what_follows_the_likeliest_path_comes_in_the_place_of_what_is_less_likely(tmp_path: Path) -> None:
    """Behind 1 comes any of 2 and 3, and behind that 0 0 5."""
    state = grammars(write_letters(tmp_path), 16).begin(Constraint(ConstraintKind.REGEX, "b(c|d)aaf?f"))
    state.advance([1])
    assert state.forced == []
    draft = Draft([0, 1, 2, 3], [1, 2, 3, 0], [-1, 0, 0, 2], [4, 5, 5, 6], [0.0, -0.1, -2.0, -2.1])
    found = forced_last(draft, state, limits(tokens=6))
    assert found.tokens == [1, 2, 0, 0, 5, 3] and found.parents == [-1, 0, 1, 2, 3, 0]
    assert found.ids == [0, 1, FIRST_ID + 2, FIRST_ID + 3, FIRST_ID + 4, 2] and found.positions == [4, 5, 6, 7, 8, 5]
    assert state.forced_behind([2]) == (1, [0, 0, 5]) and state.forced_behind([2, 0]) == (2, [0, 5])
    assert state.forced_behind([7]) == (0, []), "it leads out of the grammar"
    assert forced_last(draft, state, limits(tokens=6, steps=2)).tokens == [1, 2, 0, 3, 0]


class Ticks(ManualClock):
    """Goes on by a second whenever it is asked."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def test_a_step_that_a_grammar_holds_merges_once_and_that_is_what_lookup_took(tmp_path: Path) -> None:
    state = grammars(write_letters(tmp_path), 16).begin(Constraint(ConstraintKind.REGEX, "(b|c|d)*"))
    texts, price, text = LookupTexts(Vocabulary(16)), LookupPrice(Ticks()), [1, 2, 3, 1, 2]
    price.rate = 1.0
    tree = LookupTree(texts, texts.text(text, len(text), b""), DrafterRecord())
    beside = LookupBeside(tree, Together(), price)
    session = DraftSession("d", Mirror(1, 2, 4, 64, 16), WaitPolicy(), beside=beside)
    within = limits(tokens=8)._replace(grammar=state)
    assert session.log_survivals(within) and session.log_survivals(within._replace(num_draft_tokens=3))
    draft = session.take(2, 4, within)
    assert draft.tokens[:2] == [2, 3]
    session.commit(draft, Accepted(draft.accept([3, *[1] * (len(draft.tokens) - 1)]), 1), 1.0)
    assert price.tokens == pytest.approx(2.0), "a second for the merge, and one for what was learnt"
    assert price.now() == 5.0, "it was asked four times before"


TOKENS = 4


@st.composite
def grown(draw: st.DrawFn, original: Original) -> Grow | None:
    """Some more nodes at the drafter."""
    links = {
        (parent, token)
        for parent, token in zip(original.tree.parents.tolist(), original.tree.tokens.tolist(), strict=True)
    }
    places = st.tuples(st.integers(0, len(original.tree)), st.integers(0, TOKENS - 1))
    fresh = [each for each in draw(st.lists(places, max_size=6, unique=True)) if each not in links]
    if not fresh or len(fresh) > original.free_nodes:
        return None
    parents, tokens = (np.array(column, dtype=np.int64) for column in zip(*fresh, strict=True))
    return original.grow(parents, tokens, np.full(len(fresh), -0.5))


@given(st.data())
def test_mirror_and_original_agree_whatever_was_forced(data: st.DataObject) -> None:
    """Grows cross with steps and commits; some of what is forced, or looked up, the drafter has, or gets only meanwhile."""
    original = Original(1, 0, 0, 64)
    texts = LookupTexts(Vocabulary(TOKENS))
    tree = LookupTree(texts, texts.text([0], 1, b""), DrafterRecord())
    beside = LookupBeside(tree, Together(), LookupPrice(ManualClock())) if data.draw(st.booleans()) else None
    session = DraftSession("d", Mirror(1, 0, 0, 64, TOKENS), WaitPolicy(), beside=beside)
    late: list[Grow] = []

    def grow() -> None:
        made = data.draw(grown(original))
        late.extend([] if made is None else [made])
        come = data.draw(st.integers(0, len(late)))
        for each in late[:come]:
            session.grow(each, 0.0)
        del late[:come]
        session.apply_grows(TreeLimits(8, 4, 4), prefilling=False)

    text = [0]
    for _ in range(6):
        grow()
        forced = data.draw(st.lists(st.integers(0, TOKENS - 1), max_size=4))
        draft = session.take(text[-1], len(text) - 1, TreeLimits(8, 4, 4, forced))
        grow()
        picks = data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=len(draft.tokens), max_size=len(draft.tokens)))
        for index, parent in enumerate(draft.parents):  # most picks are nodes
            if parent >= 0 and data.draw(st.booleans()):
                picks[parent] = draft.tokens[index]
        path = draft.accept(picks)
        accepted = Accepted(path, picks[path[-1]])
        reroot = session.commit(draft, accepted, 1.0)
        text += accepted.commits(draft)
        told = [token for commit in reroot.commits for token in commit.tokens]
        assert told == accepted.commits(draft)
        for commit in reroot.commits:
            original.commit(commit)
        assert session.mirror.tree.root_position == len(text) - 1
    for each in late:
        session.grow(each, 0.0)
    session.apply_grows(TreeLimits(8, 4, 4), prefilling=False)
    assert session.mirror.listed() == _listed(original)


def _listed(original: Original) -> Any:
    tree = original.tree
    return tree.ids.tolist(), tree.parents.tolist(), tree.tokens.tolist(), tree.edges.tolist()


KEYS: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "boolean"} for name in ("first_of_all", "second_of_all", "third_of_all")},
    "required": ["first_of_all", "second_of_all", "third_of_all"],
    "additionalProperties": False,
}
CHAIN = PlanChanges(num_steps=8, topk=4, num_draft_tokens=16, draft_ahead=False, wait_budget_us=10_000_000)
SAMPLINGS = [Sampling(), Sampling(0.9, seed=4), Sampling(1.1, seed=5, repetition_penalty=1.1)]


def request(sampling: Sampling, drafter: Endpoint | None = None, **options: Any) -> DecodeRequest:
    constraint = make_request("", json_schema=KEYS).constraint
    prompt = Tokenizer.load(POCKET).encode("def options():\n    return ")
    return DecodeRequest("r", prompt, sampling, Stopping(80), CHAIN, drafter, constraint=constraint, **options)


async def steps_of(verifier: Verifier, asked: DecodeRequest) -> tuple[list[int], int]:
    tokens, end = await decode(verifier, asked)
    assert end.reason is FinishReason.STOP
    return tokens, end.speculation.steps


async def test_keys_cost_hardly_any_steps_without_any_drafter() -> None:
    async with verifier_over(POCKET) as verifier:
        for sampling in SAMPLINGS:
            tokens, steps = await steps_of(verifier, request(sampling))
            forced, fewer = await steps_of(verifier, request(sampling, any_drafter=True))
            assert tokens == forced and {*json.loads(Tokenizer.load(POCKET).decode(tokens))} == {*KEYS["required"]}
            assert fewer < steps == len(tokens)
        greedy = await steps_of(verifier, request(Sampling(), any_drafter=True))
        assert greedy[1] < math.ceil(len(greedy[0]) / 2)


async def test_text_is_the_same_with_every_kind_of_drafter() -> None:
    async with pocket_drafters() as drafters, verifier_over(POCKET, max_sessions=64) as verifier:
        alone = [await steps_of(verifier, request(sampling)) for sampling in SAMPLINGS]
        for drafter in drafters.values():
            at = endpoint_of(drafter)
            found = await asyncio.gather(*(steps_of(verifier, request(sampling, at)) for sampling in SAMPLINGS))
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in alone], drafter.member_id
            assert all(fewer < steps for (_, fewer), (_, steps) in zip(found, alone, strict=True)), drafter.member_id

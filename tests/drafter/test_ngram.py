from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.draft_events import Open
from specsplit.lookup import SharedTexts
from specsplit.settings import DrafterSettings
from specsplit.speculation import Grow, Mirror
from specsplit.tree import ROOT
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit_drafter.drafts.proposer import FrontierPart, WholeTree
from specsplit_drafter.edge.service import load_proposer
from specsplit_drafter.engine.session_table import SessionTable
from specsplit_drafter.kinds.ngram import NgramProposer
from tests.drafter.toys import open_event, table_of

WORDS = Vocabulary(1000, "ab" * 32)
KEY = (1, 1)


def test_outputs_of_one_scope_are_shared_and_of_none_are_not() -> None:
    shared = SharedTexts(tokens=100, scopes=2)
    proposer = NgramProposer(4, shared=shared)
    answer(proposer, b"ann", [9, 9], [5, 6, 7, 8])
    assert guess(proposer, b"ann", [1, 5, 6]) == 7
    assert guess(proposer, b"bob", [1, 5, 6]) is None
    assert guess(proposer, b"", [1, 5, 6]) is None
    answer(proposer, b"", [9, 9], [1, 2, 3])
    assert guess(proposer, b"", [1, 2]) is None, "a session without a scope leaves nothing behind"


@pytest.mark.parametrize(
    ("shares", "knowing"),
    [("session", set()), ("identity", {b"ann"}), ("all", {b"ann", b"bob", b""})],
)
def test_the_setting_says_who_knows_of_whose_outputs(shares: str, knowing: set[bytes]) -> None:
    settings = DrafterSettings.model_validate({"kind": "ngram", "ngram_shares": shares})
    proposer = load_proposer(settings, SystemClock())
    assert isinstance(proposer, NgramProposer)
    answer(proposer, b"ann", [9, 9], [5, 6, 7, 8])
    assert {scope for scope in (b"ann", b"bob", b"") if guess(proposer, scope, [1, 5, 6]) == 7} == knowing


@pytest.mark.parametrize("everybody", [False, True])
def test_tokens_of_another_vocabulary_mean_something_else_and_are_not_shared(everybody: bool) -> None:
    proposer = NgramProposer(4, shared=SharedTexts(tokens=100, scopes=2, everybody=everybody))
    answer(proposer, b"ann", [9, 9], [5, 6, 7, 8])
    other = open_tree(proposer, b"ann", [1, 5, 6], 3, Vocabulary(8, "cd" * 32))
    proposer.close(KEY)
    assert not other.children.tokens.size
    assert guess(proposer, b"ann", [1, 5, 6]) == 7


def test_a_prompt_is_not_shared_and_neither_is_what_stands_between_two_outputs() -> None:
    proposer = NgramProposer(4, shared=SharedTexts(tokens=100, scopes=2))
    answer(proposer, b"ann", [1, 2, 3], [4, 5])
    answer(proposer, b"ann", [1, 2, 3], [6, 7])
    assert guess(proposer, b"ann", [1, 2]) is None
    assert guess(proposer, b"ann", [0, 5]) is None, "the end of one output is not followed by the next"


def answer(proposer: NgramProposer, scope: bytes, prompt: list[int], output: list[int]) -> None:
    """A whole session of a client."""
    tree = open_tree(proposer, scope, [*prompt, *output], len(prompt))
    assert tree is not None
    proposer.close(KEY)


def guess(proposer: NgramProposer, scope: bytes, prompt: list[int]) -> int | None:
    """The likeliest token behind a new prompt of a client."""
    tree = open_tree(proposer, scope, prompt, len(prompt))
    proposer.close(KEY)
    return int(tree.children.tokens[0, 0]) if tree.children.tokens.size else None


def open_tree(
    proposer: NgramProposer, scope: bytes, tokens: list[int], prompt_tokens: int, vocabulary: Vocabulary = WORDS
) -> WholeTree:
    mirror = Mirror(1, tokens[-1], len(tokens) - 1, 64, 1000)
    opened = Open(tokens, Sampling(), Plan(), vocabulary, 64, prompt_tokens=prompt_tokens, scope=scope)
    proposer.open(KEY, mirror.tree, opened)
    (tree,) = proposer.expand([FrontierPart(KEY, np.array([ROOT]))])
    return tree


class Followed:
    """A session of a table whose verifier steps along a text that is known, over all nodes that it has."""

    def __init__(self, prompt: list[int], output: list[int], plan: Plan | None = None, max_nodes: int = 64) -> None:
        self.table: SessionTable = table_of(NgramProposer(4))
        self.mirror = Mirror(1, prompt[-1], len(prompt) - 1, max_nodes, 1000)
        self.left = output
        self.grows: list[list[Grow]] = []
        """Those behind the open and behind every commit."""
        self.expansions: list[int] = []
        opened = open_event(prompt, vocabulary=WORDS, plan=plan or Plan(num_steps=8), max_nodes=max_nodes)
        self.table.handle(KEY, opened)

    def draft(self) -> None:
        """Have the drafter do all that it will do before the next commit."""
        self.expansions.append(0)
        self.grows.append([])
        while self.table.expand():
            self.expansions[-1] += 1
            assert self.expansions[-1] < 100
            self._deliver()
        self._deliver()

    def step(self, most: int = 64) -> None:
        """Accept what `most` nodes of the tree have of the text, the root counted, and commit one token more."""
        draft = self.mirror.take(most, 8, 16)
        places = {pair: index for index, pair in enumerate(zip(draft.parents, draft.tokens, strict=True))}
        path = [0]
        while len(path) < len(self.left) and (path[-1], self.left[len(path) - 1]) in places:
            path.append(places[path[-1], self.left[len(path) - 1]])
        commit, _ = self.mirror.commit(draft, path, self.left[len(path) - 1])
        self.left = self.left[len(path) :]
        self.table.handle(KEY, commit)

    def _deliver(self) -> None:
        for _, answer in self.table.outgoing().get(1, []):
            assert isinstance(answer, Grow)
            self.grows[-1].append(answer)
            self.mirror.grow(answer)
        original = self.table.growth_of(KEY).original.tree
        assert self.mirror.tree.ids.tolist() == original.ids.tolist()
        assert self.mirror.tree.scores.tolist() == original.scores.tolist()


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_every_commit_is_answered_by_one_expansion_and_one_message_that_says_that_the_drafter_rests(
    prompt: list[int], output: list[int]
) -> None:
    session = Followed(prompt, output)
    while session.left:
        session.draft()
        session.step()
    assert set(session.expansions) == {1}
    assert all(len(grows) == 1 and grows[0].resting for grows in session.grows)


def test_what_survives_a_hit_keeps_its_ids_and_the_tree_grows_on_below_it() -> None:
    text = list(range(10, 40))
    session = Followed([*text, 10, 11], text[2:], plan=Plan(num_steps=4))
    session.draft()
    tree = session.mirror.tree
    before = {int(token): int(node) for token, node in zip(tree.tokens, tree.ids, strict=True)}
    session.step(most=3)
    session.draft()
    after = {int(token): int(node) for token, node in zip(tree.tokens, tree.ids, strict=True)}
    assert before.keys() == {*text[1:11]}, "nine levels, and the root"
    assert after.keys() == {*text[4:14]}
    assert all(after[token] == before[token] for token in before.keys() & after.keys())


def test_a_drafter_without_a_model_draws_nothing_that_the_step_has_no_use_for() -> None:
    """Behind 1, 2 come 3 (twice, of three), 4 and, behind the 3, nothing that is sure."""
    prompt = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 7, 8]
    sizes = list[int]()
    for floor in (0.0, 0.3, 0.9):
        session = Followed(prompt, [1, 2, 9])
        commit, _ = session.mirror.commit(session.mirror.take(1, 8, 16), [0], 1)
        session.table.handle(KEY, replace(commit, floor=floor))
        commit, _ = session.mirror.commit(session.mirror.take(1, 8, 16), [0], 2)
        session.table.handle(KEY, replace(commit, floor=floor))
        session.draft()
        tree = session.mirror.tree
        survivals = np.exp(tree.scores[1:] - tree.root_score)
        assert (survivals >= floor).all()
        assert session.grows[0][-1].resting, "it answers, be it that it has nothing"
        sizes.append(len(tree))
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_a_plan_that_rests_draws_nothing_and_one_that_speculates_again_does() -> None:
    session = Followed([1, 2, 3, 1, 2], [3, 1, 2, 3], plan=Plan(num_steps=0))
    session.draft()
    assert session.expansions == [0]
    session.table.handle(KEY, Plan(num_steps=4))
    session.draft()
    assert session.expansions == [0, 1]
    assert session.grows[1][0].tokens


def test_the_plan_and_the_room_bound_the_tree() -> None:
    text = list(range(30))
    for plan, max_nodes, nodes in (
        (Plan(num_steps=2), 64, 5),
        (Plan(num_steps=2, draft_ahead=False), 64, 2),
        (Plan(num_steps=16), 7, 7),
    ):
        session = Followed([*text, 0], text[1:], plan=plan, max_nodes=max_nodes)
        session.draft()
        assert len(session.mirror.tree) == nodes

"""Block drafters: every level of what they draft is that of a reference, and growth draws every node anew by its own block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.draft_events import Open
from specsplit.model import OutOfPages
from specsplit.tree import ROOT, Ints, TokenTree
from specsplit.values import DrafterInfo, DrafterKind, Plan, Sampling
from specsplit_drafter.drafts.calibration import DISTANCES
from specsplit_drafter.drafts.proposer import (
    UNBOUNDED,
    AppliedCommit,
    Children,
    DrawnLevel,
    ExpansionOutcome,
    FrontierPart,
    ProposerDefaults,
    ProposerPages,
    SessionKey,
)
from specsplit_drafter.kinds import block_model
from specsplit_drafter.kinds.block_model import BlockModel
from specsplit_drafter.kinds.block_proposer import BlockProposer
from tests.drafter.block_toys import BLOCKS, SIZE, BlockReference, block_head, raw_of
from tests.drafter.head_toys import VOCABULARY, HeadVerifier, event_of, layout_of, run_four
from tests.drafter.toys import THE, WORDS, Handled, Verifier, deliver, table_of
from tests.support.rounding import assert_same_log_probabilities
from tests.support.sampling import expected as perturbed
from tests.support.trees import Seen

CHILDREN = 5
A, B = 1, 2
KEY = (1, 1)
PLAN = Plan(num_steps=2, num_draft_tokens=4)
PROMPT = list(range(1, 12))
SAMPLED = Sampling(temperature=1.0, top_k=20, seed=11)
FILTERED = Sampling(temperature=0.8, top_p=0.9, seed=5)
PENALISED = Sampling(temperature=1.0, seed=3, repetition_penalty=1.2, frequency_penalty=0.4)


class Checked(BlockProposer):
    """Compares all children, of every level, with the reference's, whatever has happened to the tree meanwhile."""

    def __init__(self, name: str, budget: int = 512, num_slots: int = 512) -> None:
        self.head = block_head(name)
        super().__init__(BlockModel(self.head, num_slots), CHILDREN, budget)
        self.reference = BlockReference(self.head)
        self.trees: dict[SessionKey, TokenTree] = {}
        self.texts: dict[SessionKey, list[int]] = {}
        self.samplings: dict[SessionKey, tuple[Sampling, int]] = {}
        self.compared = self.deep = 0

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None:
        super().open(session, tree, opened)
        self.trees[session], self.texts[session] = tree, list(opened.tokens)
        self.samplings[session] = opened.sampling, len(opened.tokens)

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None:
        super().commit(session, applied)
        self.texts[session] += applied.tokens

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[ExpansionOutcome]:
        found = super().expand(frontier, levels)
        for part, children in zip(frontier, found, strict=True):
            if children is not None:
                assert isinstance(children, Children)
                self.compare_all(part, children)
        return found

    def compare_all(self, part: FrontierPart, children: Children) -> None:
        above = [(self.path(part.session, slot), list[int]()) for slot in part.slots.tolist()]
        for node, tokens, raw in zip(above, children.tokens, children.log_probabilities, strict=True):
            self.compare(part.session, *node, tokens, raw)
        for level in children.levels:
            self.deep += 1
            above = [
                (above[parent][0], [*above[parent][1], token])
                for parent, token in zip(level.parents.tolist(), level.tokens.tolist(), strict=True)
            ]
            for node, tokens, raw in zip(above, level.children.tokens, level.children.log_probabilities, strict=True):
                self.compare(part.session, *node, tokens, raw)

    def path(self, session: SessionKey, slot: int) -> list[int]:
        tree = self.trees[session]
        return [tree.token_of(above) for above in tree.path(slot)]

    def compare(self, session: SessionKey, path: list[int], chosen: list[int], tokens: Ints, raw: np.ndarray) -> None:
        sampling, prompt = self.samplings[session]
        if sampling.penalised and chosen:
            return  # what is drafted below its node is not counted
        text = [*self.texts[session], *path, *chosen]
        with torch.inference_mode():
            logits, confidence = self.reference.logits(self.texts[session], path, chosen)
            best, expected = raw_of(perturbed(logits[None], sampling, text, prompt)[0], confidence, CHILDREN)
        known = np.isfinite(expected)
        assert tokens[known].tolist() == best[known].tolist()
        assert_same_log_probabilities(raw[known], expected[known], VOCABULARY.size)
        self.compared += 1


def run(proposer: Checked, sampling: Sampling, steps: int = 8, seed: int = 1, width: int = 12) -> list[HeadVerifier]:
    table = table_of(proposer, width=width, survival=0.006)
    return run_four(table, proposer.head, plan=PLAN, sampling=sampling, steps=steps, most_expansions=4, seed=seed)


@pytest.mark.parametrize(
    ("name", "sampling", "budget"),
    [
        *((name, Sampling(), 512) for name in BLOCKS),
        *((name, SAMPLED, 3) for name in BLOCKS),
        ("dflash", PENALISED, 512),
        ("dflash", FILTERED, 512),
        ("dflash2", PENALISED, 512),
        ("dspark", FILTERED, 512),
    ],
)
def test_every_level_is_that_of_the_reference_on_every_path_after_hits_and_misses(
    name: str, sampling: Sampling, budget: int
) -> None:
    proposer = Checked(name, budget)
    verifiers = run(proposer, sampling)
    hits = [hit for verifier in verifiers for hit in verifier.hits]
    assert any(hits)
    assert not all(hits)
    assert proposer.compared > 60
    assert proposer.deep > 20 or (proposer.head.choice.conditions and not sampling.greedy)
    assert proposer.pages.used == 0


def fed(
    proposer: Checked, tokens: Sequence[int] = PROMPT, key: SessionKey = KEY, sampling: Sampling | None = None
) -> Handled:
    """A session with all of its features: any node can be expanded."""
    session = Handled(proposer, tokens, key, sampling)
    proposer.feed(key, event_of(proposer.head, tokens, 0, len(tokens) - 1), layout_of(proposer.head))
    return session


def children_of(found: ExpansionOutcome) -> Children:
    assert isinstance(found, Children)
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_nodes_that_are_expanded_together_have_the_children_that_they_have_alone(name: str) -> None:
    proposer = Checked(name)
    session = fed(proposer)
    session.grow((0, 20), (1, 21), (2, 22), (3, 23), (4, 24), (5, 25), (0, 26))
    together = children_of(session.expand(1, 4, 6, 7))
    for row, node in enumerate((1, 4, 6, 7)):
        alone = children_of(session.expand(node))
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert_same_log_probabilities(alone.log_probabilities[0], together.log_probabilities[row], VOCABULARY.size)


def test_blocks_that_do_not_fit_in_one_forward_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_model, "SCRATCH", 2 * SIZE)
    proposer = Checked("dflash2")
    session = fed(proposer)
    session.grow((0, 20), (1, 21), (2, 22), (0, 23))
    other = fed(proposer, PROMPT[:5], (1, 2))
    found = proposer.expand([session.frontier(1, 2, 3, 4), other.frontier()])
    assert [len(children_of(each).tokens) for each in found] == [4, 1]
    assert proposer.compared == 5


def test_nothing_is_drafted_before_the_features_of_all_committed_tokens_have_come() -> None:
    proposer = Checked("dflash", budget=4)
    session = Handled(proposer, PROMPT)
    assert proposer.stalled(KEY)
    proposer.feed(KEY, event_of(proposer.head, PROMPT, 0, 6), layout_of(proposer.head))
    assert not proposer.stalled(KEY)
    assert session.expand() is None
    assert proposer.take_read() == ((KEY, 4),)
    assert session.expand() is None
    assert proposer.stalled(KEY)
    proposer.feed(KEY, event_of(proposer.head, PROMPT, 6, 4), layout_of(proposer.head))
    assert isinstance(session.expand(), Children)
    assert proposer.take_read() == ((KEY, 10),)


def test_a_context_that_does_not_fit_is_refused_and_leaves_nothing_behind() -> None:
    proposer = Checked("dflash", num_slots=8)
    with pytest.raises(OutOfPages):
        Handled(proposer, PROMPT)
    assert proposer.pages == ProposerPages(0, 8)
    session = fed(proposer, PROMPT[:6])
    assert isinstance(session.expand(), Children)
    for token in (7, 8, 9):
        session.commit(0, token)
    with pytest.raises(OutOfPages):
        session.commit(0, 10)
    proposer.close(KEY)
    assert proposer.pages == ProposerPages(0, 8)


class Fixed(ProposerDefaults):
    """A drafter whose blocks say the same below every node: A at 0.6 and B at 0.3, and on the level below A at 0.5 and B at 0.4."""

    redraws = shares_root = drafts_blocks = True
    distances = DISTANCES + 1

    def __init__(self) -> None:
        self.info = DrafterInfo(DrafterKind.DFLASH, "fixed", WORDS, 100)
        self.pages, self.free_kv_slots = ProposerPages(0, 0), UNBOUNDED
        self.asked: list[list[int]] = []

    def open(self, session: SessionKey, tree: TokenTree, opened: Open) -> None: ...

    def commit(self, session: SessionKey, applied: AppliedCommit) -> None: ...

    def close(self, session: SessionKey) -> None: ...

    def pending(self, session: SessionKey) -> int:
        return 0

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children]:
        (part,) = frontier
        assert part.scoring is not None
        self.asked.append(part.slots.tolist())
        count = len(part.slots)
        first, second = ([[(A, math.log(a)), (B, math.log(b))]] for a, b in ((0.6, 0.3), (0.5, 0.4)))
        below = DrawnLevel(np.arange(count).repeat(2), np.tile([A, B], count), Children.of(second * (2 * count)))
        whole = Children.of(first * count)
        return [Children(whole.tokens, whole.log_probabilities, [below])]


def survivals(verifier: Verifier) -> dict[tuple[int, ...], float]:
    """Survival of every node by its path."""
    root = Seen(verifier.mirror.tree).root
    return {
        tuple(above.token for above in node.path()): math.exp(node.score - root.score) for node in root.descendants()
    }


def test_a_worked_example() -> None:
    """One expansion draws both levels of the root's block; then every node is drawn anew by itself, which says 0.6 in the place of 0.5."""
    proposer = Fixed()
    table = table_of(proposer, survival=0.2)
    verifier = Verifier(table, KEY, [THE], lambda _: A, plan=Plan(num_steps=2))
    assert table.expand() == 1
    deliver(table, verifier)
    assert proposer.asked == [[ROOT]]
    expected = {(A,): 0.6, (B,): 0.3, (A, A): 0.3, (A, B): 0.24}
    assert survivals(verifier) == pytest.approx(expected, rel=1e-3)
    assert table.expand() == 4, "all that are likelier than 0.2, whatever has become of their parents"
    deliver(table, verifier)
    own = {(A, A): 0.36, (A, B): 0.18, (A, A, A): 0.216}
    assert survivals(verifier) == pytest.approx({**expected, **own}, rel=1e-3)


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["dflash", "dflash2", "dspark"]),
    seed=st.integers(0, 1000),
    width=st.sampled_from([1, 3, 64]),
    sampling=st.sampled_from([Sampling(), SAMPLED]),
)
def test_whatever_comes_when_mirrors_follow_and_memory_is_given_back(
    name: str, seed: int, width: int, sampling: Sampling
) -> None:
    """A mirror refuses what does not hang together."""
    proposer = Checked(name, budget=1 + seed % 7)
    run(proposer, sampling, steps=4, seed=seed, width=width)
    assert proposer.pages.used == 0

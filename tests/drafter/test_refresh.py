"""After a commit a head draws its tree anew: what it finds then is what one finds that has just been opened on the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.features import FeatureFormat, FeatureLayout, Features
from specsplit.model.tensors.feature_codec import encode
from specsplit.settings import DrafterSettings
from specsplit.values import DrafterKind, Sampling
from specsplit_drafter.drafts.proposer import Children, Proposer
from specsplit_drafter.edge.service import load_proposer
from specsplit_drafter.kinds.heads import HeadModel
from specsplit_drafter.kinds.model_proposer import ModelProposer
from tests.drafter.head_toys import HEADS, head_of, layout_of
from tests.drafter.toys import Handled
from tests.support.rounding import APART, assert_same_log_probabilities, spacing
from tests.support.trees import Seen

POCKET = Path(__file__).parents[2] / "models" / "pocket"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Fed(Handled):
    """One session whose features are numbers drawn by position, so that it may be opened again at any place."""

    def __init__(self, proposer: Proposer, layout: FeatureLayout, tokens: Sequence[int]) -> None:
        super().__init__(proposer, tokens, sampling=Sampling())
        self._fed_to = proposer
        self._layout = layout
        self._sent = 0
        self.feed()

    def feed(self) -> None:
        """Send all that there are: of every committed token but the root."""
        count = len(self.tokens) - 1 - self._sent
        rows = torch.randn(256, self._layout.width, generator=torch.Generator().manual_seed(1))
        sent = rows[self._sent : self._sent + count]
        self._fed_to.feed(self.key, Features(self._sent, count, *encode(sent, self._layout)), self._layout)
        self._sent += count

    def follow(self, deepest: int, *tokens: int) -> None:
        """A commit and its features."""
        self.commit(deepest, *tokens)
        self.feed()

    def path(self, node_id: int) -> tuple[int, ...]:
        """Tokens from below the root down to a node."""
        tree = self.original.tree
        return tuple(tree.token_of(slot) for slot in tree.path(tree.slot(node_id)))

    def draw(self) -> dict[tuple[int, ...], Children]:
        """Expand every node, level by level: the children of each by its path."""
        found: dict[tuple[int, ...], Children] = {}
        levels: dict[int, list[int]] = {}
        for node_id in Seen(self.original.tree).nodes:
            levels.setdefault(len(self.path(node_id)), []).append(node_id)
        for level in [[], *(levels[depth] for depth in sorted(levels))]:
            children = self.expand(*level)
            assert isinstance(children, Children)
            for row, path in enumerate([self.path(i) for i in level] or [()]):
                found[path] = Children(children.tokens[[row]], children.log_probabilities[[row]])
        return found


def plant(session: Fed, paths: Sequence[tuple[int, ...]]) -> None:
    """Grow the nodes with these paths, parents first."""
    ids = {(): 0} | {session.path(node_id): node_id for node_id in Seen(session.original.tree).nodes}
    for path in sorted(paths, key=len):
        if path not in ids:
            session.grow((ids[path[:-1]], path[-1]))
            ids[path] = max(Seen(session.original.tree).nodes)


def assert_equal(ours: dict[tuple[int, ...], Children], theirs: dict[tuple[int, ...], Children], tokens: int) -> None:
    assert ours.keys() == theirs.keys()
    for path, children in ours.items():
        log_probabilities = children.log_probabilities
        assert_same_log_probabilities(log_probabilities, theirs[path].log_probabilities, tokens)
        least = log_probabilities[:, -1:] + 2 * APART * spacing(log_probabilities, math.log(tokens)).numpy()
        likely = log_probabilities > least  # of equals either may be the last
        assert set(children.tokens[likely]) <= set(theirs[path].tokens[0]), path


def check(
    proposer: Callable[[], Proposer], layout: FeatureLayout, paths: Sequence[tuple[int, ...]], accepted: int, bonus: int
) -> None:
    """Draw a tree, commit a path and a bonus, draw it again: as if the session had just been opened there."""
    ours = Fed(proposer(), layout, PROMPT)
    plant(ours, paths)
    before = ours.draw()
    ids = [0, *Seen(ours.original.tree).nodes]
    deepest = ids[accepted % len(ids)]
    committed = [*(ours.path(deepest) if deepest else ()), bonus]
    ours.follow(deepest, *committed)
    anew = proposer()
    vocabulary = anew.info.vocabulary
    assert vocabulary is not None
    theirs = Fed(anew, layout, [*PROMPT, *committed])
    survivors = [ours.path(node_id) for node_id in Seen(ours.original.tree).nodes]
    plant(theirs, survivors)
    drawn = ours.draw()
    assert_equal(drawn, theirs.draw(), vocabulary.size)
    for path, children in drawn.items():
        old = before.get((*committed, *path))
        assert old is None or not np.allclose(old.log_probabilities, children.log_probabilities), "true features count"


@pytest.mark.parametrize("kind", [DrafterKind.EAGLE3, DrafterKind.EAGLE, DrafterKind.MULTI_LAYER_EAGLE])
def test_a_tree_drawn_anew_by_a_trained_head_is_that_of_one_just_opened(kind: DrafterKind) -> None:
    def proposer() -> Proposer:
        settings = DrafterSettings(kind=kind, model=POCKET / kind.value, target=POCKET / "target", children=8)
        return load_proposer(settings, SystemClock())

    info = proposer().info
    layout = info.features.layout(info.features.hidden_size, FeatureFormat.FLOAT32)
    paths = [(7,), (8,), (7, 11), (7, 12), (7, 11, 13)]
    if kind is not DrafterKind.MULTI_LAYER_EAGLE:
        paths += [(7, 11, 13, 14), (7, 11, 13, 14, 15)]
    check(proposer, layout, paths, accepted=0, bonus=7)


def test_a_node_that_is_drawn_anew_runs_through_the_layer_that_predicts_its_children_and_through_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, ran = head_of("mimo"), list[tuple[int, int]]()
    model, run = HeadModel(head, 512), HeadModel.run
    monkeypatch.setattr(
        HeadModel,
        "run",
        lambda self, step, work: (
            ran.append((step, sum(row.num_tokens for row in work.rows))),
            run(self, step, work),
        )[1],
    )
    session = Fed(ModelProposer(model, 6), layout_of(head), PROMPT)
    plant(session, [(20,), (20, 21), (20, 22)])
    session.draw()
    session.follow(0, 20)
    assert head.shape.num_steps == 3 and sorted(session.path(each) for each in Seen(session.original.tree).nodes) == [
        (21,),
        (22,),
    ]
    session.expand()
    ran.clear()
    session.expand(*Seen(session.original.tree).nodes)
    assert ran == [(1, 2)]


TOKENS = st.integers(20, 23)


@pytest.mark.parametrize("name", HEADS)
def test_a_tree_drawn_anew_is_that_of_a_drafter_just_opened_whatever_the_tree_and_the_commit(name: str) -> None:
    head = head_of(name)

    def proposer() -> ModelProposer:
        return ModelProposer(HeadModel(head, 512), 6)

    deepest = min(4, proposer().max_depth - 1)

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.sets(st.lists(TOKENS, min_size=1, max_size=max(1, deepest)).map(tuple), max_size=6),
        st.integers(0, 20),
        TOKENS,
    )
    def law(drawn: set[tuple[int, ...]], accepted: int, bonus: int) -> None:
        whole = (
            {path[:length] for path in drawn for length in range(1, len(path) + 1)}
            if deepest
            else set[tuple[int, ...]]()
        )
        check(proposer, layout_of(head), sorted(whole), accepted, bonus)

    law()

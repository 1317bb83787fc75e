"""The heart of correctness: packed rows over paged KV give what transformers' own layers give on each path alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specsplit.features import FeatureFormat
from specsplit.model import Row, RowPages
from specsplit.model.heads import Head, HeadRunner
from tests.model.heads.conftest import Loaded
from tests.model.heads.published import EVERYBODY, VOCAB
from tests.model.heads.reference import Reference, last_of_chain
from tests.support.rounding import assert_same_sums

PREFIX = 5
Load = Callable[..., Loaded]


class Tree:
    """Rows of committed tokens, and of nodes below the last of them: what each says, reads and descends from."""

    def __init__(self, parents: list[int], width: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.parents = [*range(-1, PREFIX - 1), *(PREFIX + parent if parent >= 0 else PREFIX - 1 for parent in parents)]
        self.tokens = torch.randint(0, VOCAB, (len(self.parents),), generator=random)
        self.states = torch.randn(len(self.parents), width, generator=random)
        self.count = len(self.parents)

    def path(self, row: int) -> list[int]:
        return [*(self.path(self.parents[row]) if self.parents[row] >= 0 else ()), row]

    def run(self, runner: HeadRunner, cuts: list[int]) -> tuple[Tensor, Tensor]:
        """All rows in tree order: those before the first cut as one row, then up to the next, as a drafter expands them."""
        slots = runner.pool.allocate(self.count)[np.random.default_rng(7).permutation(self.count)]
        mask = Row.tree(self.tokens.numpy(), self.parents, RowPages.alone(slots, self.count)).tail_mask
        outputs = [
            runner.forward(
                [
                    Row(
                        tokens=self.tokens[start:stop].numpy(),
                        positions=mask[start:stop].sum(axis=1) - 1,
                        pages=RowPages.alone(slots[:stop], stop),
                        tail_mask=mask[start:stop, :stop],
                    )
                ],
                self.states[start:stop],
            )
            for start, stop in zip([0, *cuts], [*cuts, self.count], strict=True)
            if stop > start
        ]
        runner.pool.release(slots)
        return torch.cat([hidden for hidden, _ in outputs]), torch.cat([states for _, states in outputs])

    def alone(self, reference: Reference, step: int, row: int) -> tuple[Tensor, Tensor]:
        path = self.path(row)
        with torch.inference_mode():
            return reference(step, self.tokens[path], self.states[path], torch.arange(len(path)))


@pytest.mark.parametrize("name", EVERYBODY)
def test_every_node_of_a_tree_matches_its_path(load: Load, name: str) -> None:
    loaded = load(name)
    reference = last_of_chain(loaded.published, loaded.tensors, loaded.target)
    for step in range(loaded.head.shape.num_steps):
        tree = Tree([-1, -1, 0, 0, 1, 3, 3, 5], loaded.head.shape.state_width, seed=step)
        hidden, states = tree.run(HeadRunner(loaded.head, step, 32), cuts=[PREFIX, PREFIX + 2])
        logits = loaded.head.logits(step, hidden)
        assert logits.shape == (tree.count, VOCAB)
        assert logits.dtype == torch.float32
        for row in range(tree.count):
            expected_logits, expected_state = tree.alone(reference, step, row)
            assert_same_sums(logits[row], expected_logits)
            assert_same_sums(states[row], expected_state)


def test_a_head_that_feeds_itself_matches_its_path(load: Load) -> None:
    """Three tokens ahead on its own states, as between commits."""
    for name in ("eagle", "eagle3", "mimo, one layer as eagle", "deepseek, one layer as eagle"):
        loaded = load(name)
        reference = last_of_chain(loaded.published, loaded.tensors, loaded.target)
        tree = Tree([-1, 0, 1], loaded.head.shape.state_width, seed=3)
        runner, slots = HeadRunner(loaded.head, 0, 16), np.arange(tree.count)
        _, states = runner.forward(
            [Row.chunk(tree.tokens[:PREFIX].numpy(), RowPages.alone(slots[:PREFIX], PREFIX))], tree.states[:PREFIX]
        )
        for row in range(PREFIX, tree.count):
            tree.states[row] = states[-1]
            hidden, states = runner.forward(
                [Row.chunk(tree.tokens[row : row + 1].numpy(), RowPages.alone(slots[: row + 1], row + 1))], states[-1:]
            )
            expected, _ = tree.alone(reference, 0, row)
            assert_same_sums(loaded.head.logits(0, hidden)[0], expected)


@pytest.fixture(scope="module")
def small(load: Load) -> Head:
    return load("eagle3").head


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_packed_as_trees_equal_rows_run_as_chains(small: Head, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10))
    parents = [data.draw(st.integers(-1, index - 1)) for index in range(size)]
    cuts = sorted(data.draw(st.sets(st.integers(1, PREFIX + size - 1), max_size=4)))
    tree = Tree(parents, small.shape.state_width, seed=size)
    hidden, states = tree.run(HeadRunner(small, 0, 32), cuts)
    for row in range(tree.count):
        path = tree.path(row)
        runner = HeadRunner(small, 0, 32)
        chain = Row.chunk(tree.tokens[path].numpy(), RowPages.alone(np.arange(len(path)), len(path)))
        alone, alone_states = runner.forward([chain], tree.states[path])
        assert_same_sums(hidden[row], alone[-1])
        assert_same_sums(states[row], alone_states[-1])


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mimo", "deepseek"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_rows_are_no_ops_twice_over(load: Load, name: str, dtype: str) -> None:
    head = load(name, dtype=dtype).head
    for step in range(head.shape.num_steps):
        runner = HeadRunner(head, step, 16)
        runner.forward(
            [Row.chunk([1, 2, 3], RowPages.alone(runner.pool.allocate(3), 3))],
            torch.ones(3, head.shape.state_width, dtype=head.dtype),
        )
        before, free = [tensor.clone() for tensor in runner.kv.tensors], runner.pool.free_pages
        for _ in range(2):
            hidden, states = runner.forward([], torch.empty(0, head.shape.state_width, dtype=head.dtype))
            assert hidden.shape == (0, head.hidden_size)
            assert states.shape == (0, head.shape.state_width)
            assert hidden.dtype == states.dtype == head.dtype == getattr(torch, dtype)
            assert head.logits(step, hidden).shape == (0, VOCAB)
        assert all(map(torch.equal, runner.kv.tensors, before))
        assert runner.pool.free_pages == free


def test_no_features_fuse_to_no_states(load: Load) -> None:
    for name in ("eagle", "eagle3", "mimo"):
        head = load(name, dtype="bfloat16").head
        width = head.shape.need.layout(head.shape.need.hidden_size, FeatureFormat.BFLOAT16).width
        states = head.fuse(torch.empty(0, width))
        assert states.shape == (0, head.shape.state_width)
        assert states.dtype == torch.bfloat16


def test_states_that_are_not_the_rows_are_refused(small: Head) -> None:
    runner = HeadRunner(small, 0, 8)
    row = Row.chunk([1, 2], RowPages.alone(runner.pool.allocate(2), 2))
    for states in (torch.zeros(3, small.shape.state_width), torch.zeros(2, small.shape.state_width + 1)):
        with pytest.raises(ValueError, match="expected one of width 32 for each token of the rows"):
            runner.forward([row], states)
    with pytest.raises(ValueError, match=r"step is 1, expected 0\.\.0"):
        HeadRunner(small, 1, 8)

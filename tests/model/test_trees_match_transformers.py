"""The heart of correctness: packed rows over paged KV give the logits that transformers gives on each path alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specsplit.model import CausalLM, PageTable, Row, RowPages
from tests.support.rounding import assert_same_sums

Pair = tuple[CausalLM, PreTrainedModel]


class Sequence:
    """One sequence as a verifier keeps it: every committed token but the root has its KV in the first slots of the table."""

    def __init__(self, lm: CausalLM, prompt: list[int]) -> None:
        self.lm = lm
        self.tokens = prompt
        self.stored = 0
        self.table = PageTable(lm.pool)
        self.drafted: Row | None = None

    def chunk(self, count: int) -> Row:
        """The next `count` committed tokens; their last logits are asked for."""
        self.table.reserve(self.stored + count)
        tokens = self.tokens[self.stored : self.stored + count]
        self.stored += count
        return Row.chunk(tokens, self.table.upto(self.stored), logits_at=[count - 1])

    def tree(self, tokens: list[int], parents: list[int]) -> Row:
        """Nodes under the root, which is the last committed token."""
        assert self.stored == len(self.tokens) - 1
        stop = self.stored + len(tokens)
        self.table.reserve(stop)
        self.drafted = Row.tree(tokens, parents, self.table.upto(stop))
        return self.drafted

    def accept(self, path: list[int], tokens: list[int], bonus: int) -> None:
        """Commit the nodes on `path` (root first) and a bonus; compact their KV to the front."""
        source = self.table.slots(0, len(self.table))[self.stored + np.array(path)]
        target = self.table.slots(self.stored, self.stored + len(path))
        self.lm.move(source, target)
        assert self.drafted is not None
        self.lm.keep_states([(self.drafted, path[-1])])
        self.stored += len(path)
        self.tokens = [*self.tokens, *(tokens[node] for node in path[1:]), bonus]


def forward(lm: CausalLM, rows: list[Row]) -> Tensor:
    """Run rows, and commit those of one wanted token."""
    logits = lm.forward(rows)
    lm.keep_states([(row, row.num_tokens - 1) for row in rows if len(row.logits_at) == 1])
    return logits


def path_to(parents: list[int], node: int) -> list[int]:
    return [*(path_to(parents, parents[node]) if parents[node] >= 0 else ()), node]


def random_parents(rng: np.random.Generator, size: int) -> list[int]:
    return [-1, *(int(rng.integers(0, index)) for index in range(1, size))]


def random_tokens(lm: CausalLM, rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, lm.info.vocabulary.size, count).tolist()


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


def assert_tree_matches(
    model: PreTrainedModel, logits: Tensor, before: list[int], tokens: list[int], parents: list[int]
) -> None:
    """`before`: the committed tokens without the root. logits [n, V], one row per node."""
    for node in range(len(parents)):
        path = [tokens[index] for index in path_to(parents, node)]
        assert_same_sums(logits[node], plain_logits(model, [*before, *path]))


def test_a_packed_batch_of_random_trees_matches_every_path(pair: Pair) -> None:
    lm, model = pair
    rng = np.random.default_rng(1)
    sequences = [Sequence(lm, random_tokens(lm, rng, length)) for length in (2, 9, 17, 30)]
    forward(lm, [sequence.chunk(len(sequence.tokens) - 1) for sequence in sequences])
    shapes = [random_parents(rng, size) for size in (1, 7, 16, 12)]
    drafts = [[s.tokens[-1], *random_tokens(lm, rng, len(p) - 1)] for s, p in zip(sequences, shapes, strict=True)]
    logits = lm.forward([s.tree(d, p) for s, d, p in zip(sequences, drafts, shapes, strict=True)])
    assert logits.shape == (36, lm.info.vocabulary.size)
    assert logits.dtype == torch.float32
    parts = logits.split([len(p) for p in shapes])
    for sequence, draft, parents, part in zip(sequences, drafts, shapes, parts, strict=True):
        assert_tree_matches(model, part, sequence.tokens[:-1], draft, parents)
        sequence.table.release()


def test_a_prompt_in_chunks_then_trees_and_compactions_matches_to_the_end(pair: Pair) -> None:
    lm, model = pair
    rng = np.random.default_rng(2)
    sequence = Sequence(lm, random_tokens(lm, rng, 23))
    for count in (5, 1, 9, 7):
        logits = forward(lm, [sequence.chunk(count)])
        assert_same_sums(logits[0], plain_logits(model, sequence.tokens[: sequence.stored]))
    for size in (8, 16, 1, 11, 16):
        parents = random_parents(rng, size)
        tokens = [sequence.tokens[-1], *random_tokens(lm, rng, size - 1)]
        logits = lm.forward([sequence.tree(tokens, parents)])
        assert_tree_matches(model, logits, sequence.tokens[:-1], tokens, parents)
        deepest = int(rng.integers(0, size))
        sequence.accept(path_to(parents, deepest), tokens, bonus=int(rng.integers(0, lm.info.vocabulary.size)))
    sequence.table.release()


def test_prefill_chunks_and_trees_share_a_batch(pair: Pair) -> None:
    lm, model = pair
    rng = np.random.default_rng(3)
    long, short, late = (Sequence(lm, random_tokens(lm, rng, length)) for length in (60, 4, 21))
    forward(lm, [short.chunk(3)])
    forward(lm, [long.chunk(20), late.chunk(20)])
    parents = random_parents(rng, 9)
    draft = [short.tokens[-1], *random_tokens(lm, rng, 8)]
    alone = [late.tokens[-1]]
    logits = forward(
        lm,
        [
            long.chunk(33),
            short.tree(draft, parents),
            late.tree(alone, [-1]),
            Row.chunk(late.tokens[:20], late.table.upto(20)),
        ],
    )
    assert_same_sums(logits[0], plain_logits(model, long.tokens[:53]))
    assert_tree_matches(model, logits[1:10], short.tokens[:-1], draft, parents)
    assert_tree_matches(model, logits[10:], late.tokens[:-1], alone, [-1])
    for sequence in (long, short, late):
        sequence.table.release()


def test_a_tree_grown_by_expansions_matches_every_path(drafting_pair: Pair) -> None:
    """As a drafter does it: scattered pages, each expansion adds nodes below any earlier ones."""
    lm, model = drafting_pair
    rng = np.random.default_rng(4)
    prompt = random_tokens(lm, rng, 12)
    table = PageTable(lm.pool)
    table.reserve(64)
    scattered = table.pages(0, 16)[rng.permutation(16)]

    def first(length: int) -> RowPages:
        return RowPages.alone(scattered[: lm.pool.pages_for(length)], length)

    forward(lm, [Row.chunk(prompt[:-1], first(11))])
    parents, tokens = random_parents(rng, 14), [prompt[-1], *random_tokens(lm, rng, 13)]
    mask = Row.tree(tokens, parents, first(25)).tail_mask
    depth = mask.sum(axis=1)
    for start, stop in ((0, 1), (1, 6), (6, 14)):
        row = Row(
            tokens=tokens[start:stop],
            positions=10 + depth[start:stop],
            pages=first(11 + stop),
            tail_mask=mask[start:stop, :stop],
            logits_at=range(stop - start),
        )
        logits = forward(lm, [row])
        for node in range(start, stop):
            path = [tokens[index] for index in path_to(parents, node)]
            expected = plain_logits(model, [*prompt[:-1], *path])
            assert_same_sums(logits[node - start], expected)
    table.release()


def test_nan_in_the_kv_of_others_does_not_reach_a_shorter_row(llama: CausalLM) -> None:
    rng = np.random.default_rng(6)
    tokens, short, long = random_tokens(llama, rng, 36), np.array([25, 26]), np.arange(27, 35)
    llama.forward([Row.chunk(tokens[6:30], RowPages.alone(long[:6], 24))])
    rows = [
        Row.chunk(tokens[:6], RowPages.alone(short, 6), logits_at=[5]),
        Row.chunk(tokens[30:], RowPages.alone(long, 30), logits_at=[5]),
    ]
    expected = llama.forward(rows)
    own = [*range(100, 106), *range(108, 138)]
    llama.kv.data[:, :, np.setdiff1d(np.arange(llama.pool.num_slots), own)] = torch.nan
    assert_same_sums(llama.forward(rows), expected)


@pytest.mark.parametrize("seed", range(5))
def test_a_row_gives_the_same_logits_whatever_else_is_in_the_batch(llama: CausalLM, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, size=5)
    sequences = [Sequence(llama, random_tokens(llama, rng, 41)) for _ in sizes]
    together = llama.forward([s.chunk(int(n)) for s, n in zip(sequences, sizes, strict=True)])
    for sequence, logits in zip(sequences, together, strict=True):
        count, sequence.stored = sequence.stored, 0
        assert_same_sums(llama.forward([sequence.chunk(count)])[0], logits)
        sequence.table.release()


@pytest.mark.parametrize("count", [1, 5, 23])
def test_a_root_beside_the_chunk_before_it_has_the_logits_of_a_forward_behind_it(
    drafting_pair: tuple[CausalLM, PreTrainedModel], count: int
) -> None:
    lm, model = drafting_pair
    rng = np.random.default_rng(count)
    tokens, parents = random_tokens(lm, rng, 4 + count + 1), [-1, 0, 1, 0, 2]
    drafts = random_tokens(lm, rng, len(parents) - 1)
    found: dict[bool, Tensor] = {}
    for together in (True, False):
        text = Sequence(lm, tokens)
        forward(lm, [text.chunk(4)])
        chunk, tree = text.chunk(count), text.tree([tokens[-1], *drafts], parents)
        if not together:
            forward(lm, [chunk])
        found[together] = forward(lm, [tree, chunk] if together else [tree])[: len(parents)]
        text.table.release()
    assert_same_sums(found[True], found[False])
    assert_same_sums(found[True][0], plain_logits(model, tokens))

"""What kernels have to do, on whatever device they run: on a GPU, or on the CPU by triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from specsplit import sampling
from specsplit.model import Geometry, PageTable, Row
from specsplit.model.lm.runner import ModelRunner
from specsplit.model.tensors.transfer import on_device
from specsplit.sampling import Filters, SamplingBatch, TokenCounts, restrict
from specsplit.speculation import Draft
from specsplit.values import MAX_TEMPERATURE, Sampling
from tests.support.sampling import counted

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton import knobs  # noqa: E402

from specsplit.model.layers.kernels.compaction import compact  # noqa: E402
from specsplit.sampling.device import DeviceBatch  # noqa: E402
from specsplit.sampling.kernels.filtering import bars  # noqa: E402
from specsplit.sampling.kernels.walking import Walked, walk  # noqa: E402

INTERPRETED: bool = knobs.runtime.interpret
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
interpreted = [
    pytest.mark.skipif(not INTERPRETED, reason="kernels run on a GPU here: tests/gpu has the same laws"),
    pytest.mark.filterwarnings(
        "ignore::RuntimeWarning"
    ),  # numpy tells of NaN and infinity, which a GPU takes as they come
]
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET is set: on a GPU, say TRITON_INTERPRET=0"),
]

LOWEST = torch.finfo(torch.float32).min
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 5e-324, 1e-6, 0.3, 1.0, 7.0, MAX_TEMPERATURE]),
    top_k=st.sampled_from([0, 0, 0, 1, 5, 39, 2**32 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 0.01, 5e-324]),
    min_p=st.sampled_from([0.0, 0.0, 0.2, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.sampled_from([(), (), ((0, 3.5),), ((0, -100.0), (1, 2.0))]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 1e-6]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
)
ODD = {"NaN": torch.nan, "overflow": torch.inf, "impossible": -torch.inf, "lowest": LOWEST}


@dataclass(frozen=True)
class Rows:
    """Rows of a forward: of which sessions, at which positions, behind which tokens of their own."""

    samplings: list[Sampling]
    owners: list[int]
    positions: list[int]
    paths: list[list[int]]
    logits: Tensor

    @property
    def counts(self) -> list[TokenCounts]:
        return [counted([0, 1, 1], 2) for _ in self.samplings]


@st.composite
def rows(draw: st.DrawFn, vocab_size: int) -> Rows:
    """Rows of which some have numbers that are none."""
    of_sessions = draw(st.lists(samplings, min_size=1, max_size=3))
    owners = draw(st.lists(st.integers(0, len(of_sessions) - 1), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    logits = torch.randn(len(owners), vocab_size, generator=generator) * draw(st.sampled_from([0.0, 1.0, 8.0]))
    for row in range(len(owners)):
        which = torch.rand(vocab_size, generator=generator) < draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
        logits[row].masked_fill_(which, ODD[draw(st.sampled_from(sorted(ODD)))])
    tokens = st.lists(st.integers(0, vocab_size - 1), max_size=3)
    return Rows(
        of_sessions,
        owners,
        [draw(st.integers(0, 2**40)) for _ in owners],
        [draw(tokens) for _ in owners],
        logits.to(draw(st.sampled_from(DTYPES))),
    )


def check_picks(given: Rows, device: torch.device) -> None:
    """Kernels pick what torch picks on the CPU."""
    vocab_size = given.logits.shape[1]
    on_host = SamplingBatch(given.samplings, vocab_size, CPU, given.counts).rows(given.owners)
    batch = DeviceBatch(given.samplings, vocab_size, device, given.counts)
    rows = batch.rows(given.owners).sent(partial(on_device, device=device))
    expected = sampling.pick(given.logits, on_host, given.positions, given.paths)
    positions = torch.tensor(given.positions, device=device)
    found = rows.pick(given.logits.to(device), positions, given.paths)
    assert [None if token < 0 else token for token in found.tolist()] == expected


def check_bars(logits: Tensor, asked: Sequence[Sampling], device: torch.device) -> None:
    """Bars let in what sorting lets in, but for tokens at which the mass has just come to top_p."""
    temperatures = torch.tensor([each.temperature for each in asked])
    found = bars(
        logits.to(device),
        torch.arange(len(asked), device=device),
        temperatures.to(device),
        torch.tensor([each.top_k or logits.shape[1] for each in asked], device=device),
        torch.tensor([each.top_p for each in asked], device=device),
        torch.tensor([math.log(each.min_p) if each.min_p else -math.inf for each in asked], device=device),
    ).cpu()
    scaled = logits / temperatures[:, None]
    expected = restrict(scaled, Filters.of(asked, logits.shape[1], CPU)).isfinite()
    for row, each in enumerate(asked):
        kept = (scaled[row] >= found[row]) & scaled[row].isfinite()
        allowed = restrict(scaled[row : row + 1], Filters.of([Sampling(1.0, top_k=each.top_k)], logits.shape[1], CPU))
        shares = allowed[0].double().softmax(0)
        for token in (kept != expected[row]).nonzero()[:, 0].tolist():
            above = shares[scaled[row] > scaled[row, token]].sum()
            assert min(abs(above - each.top_p), abs(above + shares[token] - each.top_p)) < 1e-5


@st.composite
def trees(draw: st.DrawFn, vocab_size: int, most: int = 12) -> Draft:
    """A draft behind position 7; the same token never hangs twice below one parent."""
    tokens, parents, positions = [draw(st.integers(0, vocab_size - 1))], [-1], [7]
    for _ in range(draw(st.integers(0, most - 1))):
        parent = draw(st.integers(0, len(tokens) - 1))
        taken = {token for token, up in zip(tokens, parents, strict=True) if up == parent}
        if len(taken) < vocab_size:
            tokens.append(draw(st.integers(0, vocab_size - 1).filter(lambda token, taken=taken: token not in taken)))
            parents.append(parent)
            positions.append(positions[parent] + 1)
    return Draft(tuple(range(len(tokens))), tuple(tokens), tuple(parents), tuple(positions), (0.0,) * len(tokens))


Walks: TypeAlias = Sequence[tuple[Draft, Sequence[int | None]]]


@st.composite
def walks(draw: st.DrawFn, vocab_size: int = 4) -> Walks:
    """Trees, and picks behind their nodes that often lead down."""
    drafts = draw(st.lists(trees(vocab_size), min_size=1, max_size=5))
    return [(draft, [draw(st.none() | st.integers(0, vocab_size - 1)) for _ in draft.tokens]) for draft in drafts]


def walked_on(device: torch.device, given: Walks) -> Walked:
    """Walk by the kernel."""

    def joined(columns: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([number for column in columns for number in column], device=device)

    drafts = [draft for draft, _ in given]
    picks = joined([[-1 if pick is None else pick for pick in picks] for _, picks in given])
    tokens, parents = joined([draft.tokens for draft in drafts]), joined([draft.parents for draft in drafts])
    widths = [len(draft.tokens) for draft in drafts]
    starts = torch.tensor([0, *widths], device=device).cumsum(0)
    deepest = max(max(draft.positions) - draft.positions[0] + 1 for draft in drafts)
    return walk(picks, tokens, parents, starts, deepest)


def check_walk(given: Walks, device: torch.device) -> None:
    """The kernel walks as `Draft.accept` does."""
    walked = walked_on(device, given)
    for tree, (draft, picks) in enumerate(given):
        path = draft.accept(picks)
        bonus = picks[path[-1]]
        assert walked.paths[tree, : walked.lengths[tree]].tolist() == path
        assert walked.paths[tree, walked.lengths[tree] :].tolist() == [0] * (walked.paths.shape[1] - len(path))
        assert walked.bonus[tree].item() == (-1 if bonus is None else bonus)


def check_compaction(
    given: Walks, page_size: int, dtype: torch.dtype, device: torch.device, kv_cache_dtype: str = "auto"
) -> None:
    """The kernel leaves in every slot what the host's own compaction leaves, heads 24 wide."""
    runner = ModelRunner(Geometry.uniform(2, 2, 2, 24), 200, page_size, dtype, device, "torch", kv_cache_dtype)
    tables = [PageTable(runner.pool) for _ in given]
    for share in (2, 1):  # pages of the tables take turns
        for table, (draft, _) in zip(tables, given, strict=True):
            table.reserve((len(draft.tokens) + 20) // share)
    rows = [
        Row.tree(draft.tokens, draft.parents, table.upto(20 + len(draft.tokens)))
        for table, (draft, _) in zip(tables, given, strict=True)
    ]
    before = torch.randn(runner.kv.data.shape, generator=torch.Generator().manual_seed(3)).to(dtype).to(device)
    runner.kv.data.copy_(before)
    runner.compact([(row, draft.accept(picks)) for row, (draft, picks) in zip(rows, given, strict=True)])
    expected = runner.kv.raw[0].clone()
    runner.kv.data.copy_(before)
    walked = walked_on(device, given)
    numbers = torch.from_numpy(np.array([(row.pages.table, 20) for row in rows])).to(device)
    pages = runner.pool.tables.on(device)
    compact(runner.kv, pages, page_size, numbers[:, 0].contiguous(), numbers[:, 1].contiguous(), *walked[:2])
    assert torch.equal(runner.kv.raw[0], expected)

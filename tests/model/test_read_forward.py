"""The last layer computes what is read of it, and that is what it is of the whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specsplit.features import LAST
from specsplit.model import CausalLM, PageTable, Row
from specsplit.model.layers.cpu import NativeLayer
from specsplit.model.native import library
from tests.support.rounding import assert_same_sums

KINDS = ["llama", "qwen3", "windows"]
DEPTH = 3

pytestmark = pytest.mark.skipif(library.obstacle() is not None, reason=str(library.obstacle()))


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, CausalLM]:
    return {kind: CausalLM.load(folders[kind], num_pages=64, page_size=4) for kind in KINDS}


def computed(lm: CausalLM, rows: list[Row], layers: Collection[int] = ()) -> tuple[Tensor, dict[int, Tensor], int]:
    """Logits and hidden states of a forward, and at how many tokens its last layer had some."""
    last: Any = lm.capture.last_layer
    assert isinstance(last, NativeLayer)
    counts: list[int] = []
    hook = last.register_forward_hook(lambda _, __, states: counts.append(states.shape[1]))
    try:
        logits, hidden = lm.forward_capturing(rows, layers)
    finally:
        hook.remove()
    (count,) = counts
    return logits, hidden, count


def everywhere(rows: list[Row]) -> list[Row]:
    return [replace(row, logits_at=range(row.num_tokens)) for row in rows]


def of_read(rows: list[Row], by_token: Tensor) -> Tensor:
    """What is wanted of [T, ...], in the order of the rows."""
    parts = by_token.split([row.num_tokens for row in rows])
    return torch.cat([part[list(row.logits_at)] for part, row in zip(parts, rows, strict=True)])


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tokens that are there, new tokens of a chunk or a tree (parents) behind them, and where logits of these are wanted, in any order."""
    before, new = draw(st.integers(0, 30)), draw(st.integers(1, 30))
    parents = list(range(-1, new - 1))
    if draw(st.booleans()):
        parents = [-1, *(draw(st.integers(0, index - 1)) for index in range(1, new))]
    return list(range(before)), parents, draw(st.lists(st.integers(0, new - 1), max_size=3, unique=True))


@given(st.sampled_from(KINDS), st.lists(texts(), min_size=1, max_size=4))
def test_logits_are_those_of_a_forward_that_computes_all(
    models: dict[str, CausalLM], kind: str, shapes: list[tuple[list[int], list[int], list[int]]]
) -> None:
    lm, tables, rows = models[kind], [], []
    for number, (before, parents, wanted) in enumerate(shapes):
        tables.append(table := PageTable(lm.pool))
        length = len(before) + len(parents)
        table.reserve(length)
        if before:
            lm.forward([Row.chunk([(7 * token + number) % 97 for token in before], table.upto(len(before)))])
        tokens = [(29 * index + number) % 97 for index in range(len(parents))]
        rows.append(Row.tree(tokens, parents, table.upto(length), wanted))
    found, states, count = computed(lm, rows, {1, DEPTH - 1})
    again = [replace(row, tokens=[5], positions=row.positions[-1:], tail_mask=row.tail_mask[-1:]) for row in rows]
    behind = lm.forward(everywhere(again))  # reads the KV of all tokens in the last layer too
    expected, all_states, total = computed(lm, everywhere(rows), {1, DEPTH - 1})
    assert total == sum(row.num_tokens for row in rows) and count == len(found) == len(of_read(rows, expected))
    assert_same_sums(found, of_read(rows, expected))
    for layer, of_all in all_states.items():
        assert_same_sums(states[layer], of_all)
    assert_same_sums(behind, lm.forward(everywhere(again)))
    for table in reversed(tables):
        table.release()


def test_a_chunk_of_which_nothing_is_read_ends_with_its_keys_and_values(models: dict[str, CausalLM]) -> None:
    lm, table = models["llama"], PageTable(models["llama"].pool)
    table.reserve(41)
    tokens = [(31 * index + 5) % 97 for index in range(41)]
    whole = lm.forward([Row.chunk(tokens, table.upto(41), range(41))])
    lm.kv.data.fill_(torch.nan)
    logits, _, count = computed(lm, [Row.chunk(tokens[:40], table.upto(40))])
    assert logits.shape == (0, 97) and count == 0
    assert_same_sums(lm.forward([Row.chunk(tokens[40:], table.upto(41), [0])]), whole[40:])
    table.release()


@pytest.mark.parametrize("layers", [{LAST}, {DEPTH}, {0, DEPTH, LAST}])
def test_features_of_the_last_layer_are_those_of_all_tokens(models: dict[str, CausalLM], layers: set[int]) -> None:
    lm, table = models["llama"], PageTable(models["llama"].pool)
    table.reserve(20)
    rows = [Row.chunk(list(range(20)), table.upto(20), [19])]
    logits, states, count = computed(lm, rows, layers)
    assert count == 20 and {layer: len(each) for layer, each in states.items()} == dict.fromkeys(layers, 20)
    assert_same_sums(logits, computed(lm, rows)[0])
    table.release()


def test_where_torch_attends_all_is_computed(folders: dict[str, Path]) -> None:
    lm = CausalLM.load(folders["llama"], num_pages=16, page_size=4, backend="torch")
    table = PageTable(lm.pool)
    table.reserve(20)
    logits, _, count = computed(lm, [Row.chunk(list(range(20)), table.upto(20), [19])])
    assert count == 20 and logits.shape == (1, 97)

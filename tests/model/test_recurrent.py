"""Recurrent layers: how a forward goes through them in passes, and whose the states are that it makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import LoadError
from specsplit.model import CausalLM, PageTable, Row, RowPages
from specsplit.model.pages.passes import passes_of
from specsplit.model.pages.snapshots import Snapshots
from specsplit.model.pages.states import RecurrentStates
from tests.model.conftest import RECURRENT, Saved
from tests.support.rounding import assert_same_sums

KIND = "delta rules"
TEXT = [(7 * index * index + 3) % 90 for index in range(40)]


def alone(length: int) -> RowPages:
    """As many tokens of table 0."""
    return RowPages(0, length)


def test_the_worked_example_takes_a_pass_for_every_depth() -> None:
    row = Row.tree([1, 2, 3, 4, 5], [-1, 0, 1, 0, 2], alone(6))
    passes = passes_of([row], [3], torch.from_numpy)
    assert [step.tokens.tolist() for step in passes.passes] == [[0], [1, 3], [2], [4]]
    assert [step.sources.tolist() for step in passes.passes] == [[3], [0, 0], [0], [0]]
    assert [step.kept for step in passes.passes] == [True, False, False, False]
    assert passes.places[0, 2] == (2, 0) and passes.places[0, 3] == (1, 1)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    found: list[Row] = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 8))
        pages = alone(count + draw(st.integers(0, 5)))
        if draw(st.booleans()):
            found.append(Row.chunk(list(range(count)), pages, logits_at=draw(st.sampled_from([(), (count - 1,)]))))
        else:
            parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, count))]
            found.append(Row.tree(list(range(count)), parents, pages))
    return found


@given(rows())
def test_every_token_is_run_once_behind_the_path_that_it_sees(found: list[Row]) -> None:
    """A state here is the list of the tokens that went into it, with the row's own number first."""
    passes = passes_of(found, list(range(len(found))), torch.from_numpy)
    owners = [(number, node) for number, row in enumerate(found) for node in range(row.num_tokens)]
    states: list[list[list[int]]] = []
    run: list[int] = []
    for step in passes.passes:
        texts = step.tokens.view(len(step.sources), -1).tolist()
        before = [[source] if step.kept else states[-1][source] for source in step.sources.tolist()]
        states.append(
            [[*text, *(owners[token][1] for token in more)] for text, more in zip(before, texts, strict=True)]
        )
        run += step.tokens.tolist()
    assert sorted(run) == list(range(len(owners)))
    assert [run[index] for index in passes.restore.tolist()] == list(range(len(owners)))
    for (number, node), (step, index) in passes.places.items():
        seen = np.flatnonzero(found[number].tail_mask[node]).tolist()
        assert states[step][index] == [number, *seen]
    ends = {(number, row.num_tokens - 1) for number, row in enumerate(found)}
    assert ends <= passes.places.keys(), "the end of every row can be committed"


def test_a_chunk_is_cut_behind_its_last_whole_page_and_behind_every_sixteenth() -> None:
    row = Row.chunk(list(range(150)), alone(160))  # of positions 10 to 159, in pages of 4
    passes = passes_of([row], [3], torch.from_numpy, page_size=4)
    assert [len(step.tokens) for step in passes.passes] == [64 - 10, 64, 160 - 128]
    assert [step.kept for step in passes.passes] == [True, False, False]
    longer = passes_of([Row.chunk(list(range(151)), alone(161))], [3], torch.from_numpy, page_size=4)
    assert [len(step.tokens) for step in longer.passes] == [54, 64, 32, 1]
    assert {node: step for (_, node), (step, _) in longer.places.items()} == {53: 0, 117: 1, 149: 2, 150: 3}


def test_where_layers_do_not_go_on_with_several_tokens_only_the_beginning_of_a_text_is_read_at_once() -> None:
    rows = [Row.chunk([1, 2, 3], alone(3)), Row.chunk([4, 5, 6], alone(8))]
    passes = passes_of(rows, [0, 7], torch.from_numpy, continues=False)
    assert [step.tokens.tolist() for step in passes.passes] == [[0, 1, 2], [3], [4], [5]]
    assert [None if step.held is None else step.held.tolist() for step in passes.passes] == [None, [], [], None]
    assert passes.places == {(0, 2): (0, 0), (1, 2): (3, 0)}
    beside = passes_of([rows[1], Row.tree([7, 8], [-1, 0], alone(6))], [0, 7], torch.from_numpy, 4, continues=False)
    assert [step.tokens.tolist() for step in beside.passes] == [[0, 3], [1, 4], [2]]
    assert [None if step.held is None else step.held.tolist() for step in beside.passes] == [[1], [1], None]
    assert beside.places == {(0, 2): (2, 0), (1, 0): (0, 0), (1, 1): (1, 0)}


def test_a_chunk_on_pages_of_its_own_which_nobody_goes_on_behind_is_not_cut() -> None:
    row = Row.chunk(list(range(160)), RowPages.alone(np.arange(40), 160))
    assert len(passes_of([row], [0], torch.from_numpy, page_size=4).passes) == 1


def test_snapshots_stay_within_their_memory_and_those_used_last_stay() -> None:
    snapshots = Snapshots()
    snapshots.limit_bytes = 3 * 40
    for page in range(3):
        snapshots.put(page, [[torch.full((1, 10), float(page))]])
    assert snapshots.get(0)[0][0][0, 0] == 0.0
    snapshots.put(3, [[torch.zeros(1, 10)]])
    assert [page in snapshots for page in range(4)] == [True, False, True, True] and snapshots.nbytes == 120
    snapshots.drop([0, 1])
    assert snapshots.nbytes == 80
    snapshots.put(9, [[torch.zeros(1, 31)]])
    assert [page in snapshots for page in (2, 3, 9)] == [True, True, False], (
        "what is larger than all of the memory pushes nothing out"
    )


def test_a_row_that_sees_nodes_of_an_earlier_forward_is_refused() -> None:
    row = Row([5], np.array([3]), alone(4), np.array([[True, False, True]]), [0])
    with pytest.raises(ValueError, match="a row of 1 tokens sees 2 others of a tree"):
        passes_of([row], [0], torch.from_numpy)


@pytest.fixture(scope="module")
def served(saved: Saved) -> Callable[[str], CausalLM]:
    """A model of a kind, loaded once."""
    return cache(lambda kind: CausalLM.load(saved(RECURRENT[kind]()), num_pages=200, page_size=4))


@pytest.fixture(scope="module")
def lm(served: Callable[[str], CausalLM]) -> CausalLM:
    return served(KIND)


def test_what_is_not_committed_is_forgotten_and_what_is_goes_on(lm: CausalLM) -> None:
    table = PageTable(lm.pool)
    table.reserve(len(TEXT))
    whole = lm.forward([Row.chunk(TEXT, table.upto(40), logits_at=[39])])
    first, rest = Row.chunk(TEXT[:25], table.upto(25)), Row.chunk(TEXT[25:], table.upto(40), logits_at=[14])
    lm.forward([first])
    with pytest.raises(ValueError, match=r"begins behind 25 tokens, and the states of its text are those behind \d+"):
        lm.forward([rest])
    lm.forward([first])
    lm.keep_states([(first, 24)])
    for _ in range(2):  # as a step that failed, and is run again
        assert_same_sums(lm.forward([rest]), whole)
    table.release()


def test_sessions_keep_their_own_states_however_many_there_are(lm: CausalLM) -> None:
    tables = [PageTable(lm.pool) for _ in range(20)]
    texts = [TEXT[number : number + 16] for number in range(20)]
    for table in tables:
        table.reserve(16)
    expected = lm.forward([Row.chunk(text, table.upto(16), [15]) for text, table in zip(texts, tables, strict=True)])
    beginnings = [Row.chunk(text[:9], table.upto(9)) for text, table in zip(texts, tables, strict=True)]
    lm.forward(beginnings)
    lm.keep_states([(row, 8) for row in beginnings])
    ends = [Row.chunk(text[9:], table.upto(16), [6]) for text, table in zip(texts, tables, strict=True)]
    assert_same_sums(lm.forward(ends), expected)
    for table in tables:
        table.release()


@st.composite
def forwards(draw: st.DrawFn) -> list[list[int] | int]:
    """Of every row the parents of a tree's nodes, or the length of a chunk."""
    found: list[list[int] | int] = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, 12))
        found.append(draw(st.just(count) | st.just([-1, *(draw(st.integers(0, at)) for at in range(count - 1))])))
    return found


@pytest.mark.parametrize("kind", [KIND, "states that one token at a time goes on from"])
@settings(max_examples=15)
@given(forwards())
def test_a_forward_holds_the_states_of_its_nodes_and_of_the_ends_of_chunks_until_it_is_committed(
    served: Callable[[str], CausalLM], kind: str, found: list[list[int] | int]
) -> None:
    lm = served(kind)
    states = lm.states
    assert states is not None
    tables = [PageTable(lm.pool) for _ in found]
    for table in tables:
        table.reserve(20)
    beginnings = [Row.chunk(TEXT[:8], table.upto(8)) for table in tables]
    lm.forward(beginnings)
    lm.keep_states([(row, 7) for row in beginnings])
    assert states.made_bytes == 0
    rows = [
        Row.chunk(TEXT[:each], table.upto(8 + each))
        if isinstance(each, int)
        else Row.tree(TEXT[: len(each)], each, table.upto(8 + len(each)))
        for each, table in zip(found, tables, strict=True)
    ]
    lm.forward(rows)
    nodes = sum(1 if isinstance(each, int) else len(each) for each in found)
    assert states.made_bytes == nodes * states.session_bytes
    lm.keep_states([(row, row.num_tokens - 1) for row in rows])
    assert states.made_bytes == 0
    for table in tables:
        table.release()


def test_a_forward_is_committed_once(lm: CausalLM) -> None:
    table = PageTable(lm.pool)
    table.reserve(8)
    row = Row.chunk(TEXT[:8], table.upto(8))
    lm.forward([row])
    lm.keep_states([(row, 7)])
    with pytest.raises(AssertionError, match="not committed yet"):
        lm.keep_states([(row, 7)])
    table.release()


def test_room_that_is_reserved_is_neither_more_nor_taken_twice(lm: CausalLM) -> None:
    assert lm.states is not None
    states, each = RecurrentStates([[torch.zeros(1, 3, 5)], [torch.zeros(1, 2)]]), 4 * (15 + 2)
    assert states.session_bytes == each
    for sessions in (20, 5):
        states.reserve(sessions)
        assert states.taken == (21 * each, 0, 0)
    states.step_bytes = 7 * each + 3
    assert states.most_nodes == 7 and states.taken.drafts == 7 * each + 3


def test_states_are_told_in_bytes(lm: CausalLM) -> None:
    assert lm.states is not None
    convolution, memory = (
        3 * (2 * 2 * 8 + 4 * 8),
        4 * 8 * 8,
    )  # kernel 4 keeps what it has read of 64 channels; 4 heads of 8 x 8
    assert lm.states.session_bytes in (2 * 4 * (convolution + memory), 2 * 4 * (convolution * 4 // 3 + memory))


def test_a_model_that_names_no_context_is_served_in_one_that_is_set(saved: Saved) -> None:
    config = RECURRENT["state spaces alone"]()
    delattr(config, "max_position_embeddings")
    folder: Path = saved(config)
    with pytest.raises(LoadError, match=r"mamba2 does not say how long a context it takes .* set max_context"):
        CausalLM.load(folder, num_pages=200, page_size=4)
    assert CausalLM.load(folder, num_pages=200, page_size=4, max_context=300).info.max_context == 300

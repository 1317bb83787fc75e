"""Pages are handed out once, come back whole, and a table never loses a token's slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsplit.model import OutOfPages, PagePool, PageTable
from specsplit.model.pages.geometry import ALL, Span
from specsplit.model.pages.windows import OutOfWindowPages, WindowPages
from specsplit.values import pages_held


def test_a_fresh_pool_hands_out_ascending_adjacent_pages() -> None:
    pool = PagePool(num_pages=8, page_size=4)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    assert pool.allocate(2).tolist() == [3, 4]
    assert pool.free_pages == 3


def test_a_pool_that_cannot_give_all_gives_none() -> None:
    pool = PagePool(num_pages=4, page_size=4)
    pool.allocate(3)
    with pytest.raises(OutOfPages, match="2 KV pages wanted, 1 of 4 free"):
        pool.allocate(2)
    assert pool.free_pages == 1


@pytest.mark.parametrize("pages", [[0, 0], [2]])
def test_a_page_that_is_not_out_cannot_come_back(pages: list[int]) -> None:
    pool = PagePool(num_pages=4, page_size=4)
    pool.allocate(2)
    with pytest.raises(ValueError, match="released twice or never allocated"):
        pool.release(np.array(pages))
    assert pool.free_pages == 2


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 12)), max_size=60),
    st.sampled_from([1, 4]),
    st.lists(
        st.builds(Span, window=st.integers(1, 9)) | st.builds(Span, chunk=st.integers(1, 9)), min_size=1, max_size=2
    ),
)
def test_a_table_that_moves_along_with_its_window_has_a_page_for_all_that_is_seen_and_no_other_has_it(
    steps: list[tuple[int, int, int]], page_size: int, spans: list[Span]
) -> None:
    """Texts grow by some tokens, behind which there is room for drafts, and give back what nobody sees any more."""
    pool = PagePool(3 * pages_held(1000, 12, page_size, 9), page_size, spans)
    tables, lengths = [PageTable(pool) for _ in range(3)], [0] * 3
    written: dict[int, tuple[int, int]] = {}
    for which, grown, drafts in steps:
        table, before = tables[which], lengths[which]
        table.reserve(before + max(grown, drafts))
        lengths[which] += grown
        for position in range(before, lengths[which]):
            written[int(table.slots(position, position + 1)[0])] = which, position
        table.shrink(lengths[which])
        table.release_before(pool.first_seen(lengths[which]))
        for number, (each, length) in enumerate(zip(tables, lengths, strict=True)):
            for position in range(pool.first_seen(length), length):
                assert written[int(each.slots(position, position + 1)[0])] == (number, position)
            if length:
                listed = pool.tables.listed(each.upto(length))
                assert listed[: each.first // page_size].tolist() == [pool.spare_page] * (each.first // page_size)
        held = [
            page for each in tables for page in each.pages(each.first // page_size, len(each) // page_size).tolist()
        ]
        assert len(set(held)) == len(held) == pool.total_pages - pool.free_pages
    for table in tables:
        table.release()
    assert pool.free_pages == pool.total_pages


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=40), st.sampled_from([1, 4, 16]))
def test_tables_never_share_a_slot_and_return_every_page(steps: list[tuple[int, int]], page_size: int) -> None:
    pool = PagePool(num_pages=64 // page_size, page_size=page_size)
    tables = [PageTable(pool) for _ in range(4)]
    for which, length in steps:
        table = tables[which]
        before = table.slots(0, min(length, len(table))).tolist()
        if length >= len(table):
            try:
                table.reserve(length)
            except OutOfPages:
                assert length > len(table)
        else:
            table.shrink(length)
            assert 0 <= len(table) - length < page_size
        assert table.slots(0, len(before)).tolist() == before
        owned = np.concatenate([t.slots(0, len(t)) for t in tables])
        assert len(np.unique(owned)) == len(owned) == (pool.total_pages - pool.free_pages) * page_size
        assert ((owned >= 0) & (owned < pool.num_slots)).all()
    for table in tables:
        table.release()
    assert pool.free_pages == pool.total_pages


def test_a_table_keeps_its_slots_while_it_grows() -> None:
    pool = PagePool(num_pages=100, page_size=16)
    table = PageTable(pool)
    table.reserve(5)
    first = table.slots(0, 16).tolist()
    table.reserve(1000)
    assert table.slots(0, 16).tolist() == first
    assert len(table) == 1008
    with pytest.raises(IndexError, match="1000:1009"):
        table.slots(1000, 1009)


def test_a_table_of_single_slot_pages_adopts_slots_in_any_order() -> None:
    pool = PagePool(num_pages=8, page_size=1)
    table = PageTable(pool)
    table.reserve(2)
    nodes = pool.allocate(3)
    table.adopt(nodes[[2, 0]])
    pool.release(nodes[[1]])
    assert table.slots(0, 4).tolist() == [0, 1, 4, 2]
    table.release()
    assert pool.free_pages == 8


def test_a_shared_page_is_free_when_its_last_holder_has_released_it() -> None:
    pool = PagePool(num_pages=4, page_size=16)
    first, second = PageTable(pool), PageTable(pool)
    first.reserve(40)
    shared = first.pages(0, 2)
    pool.share(shared)
    second.adopt(shared)
    second.reserve(33)
    assert (second.slots(0, 32) == first.slots(0, 32)).all() and len(second) == 48
    assert [pool.holders(page) for page in range(4)] == [2, 2, 1, 1]
    first.release()
    assert pool.free_pages == 1
    second.release()
    assert pool.free_pages == 4
    with pytest.raises(ValueError, match="shared twice or never allocated"):
        pool.share(shared)


def test_a_table_may_begin_behind_pages_that_it_does_not_hold() -> None:
    pool = PagePool(num_pages=4, page_size=4, spans=[Span(window=4)])
    table = PageTable(pool)
    table.adopt(pool.allocate(1), behind=2)
    table.reserve(16)
    assert (table.first, len(table), pool.free_pages) == (8, 16, 2)
    assert pool.tables.listed(table.upto(16)).tolist() == [4, 4, 0, 1], "the page behind the last stands for those"
    with pytest.raises(IndexError, match="slots 7:9 of a table that has 8:16"):
        table.slots(7, 9)
    table.shrink(8)
    assert (table.first, len(table), pool.free_pages) == (0, 0, 4)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="num_pages is 0"):
        PagePool(0, 16)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12)), max_size=30), st.sampled_from([1, 4])
)
def test_window_pages_of_tables_are_their_own_and_a_look_up_is_the_same_however_it_is_made(
    steps: list[tuple[int, int, int]], page_size: int
) -> None:
    """Texts grow, and see a window behind which there is room for some tokens; one that finds no room is as it was."""
    windows = WindowPages(64, 24 // page_size, page_size, [Span(window=5)])
    pool = PagePool(64, page_size, (ALL, Span(window=5)), windows)
    tables = [PageTable(pool) for _ in range(3)]
    seen = [range(0)] * 3
    for which, position, more in steps:
        table = tables[which]
        table.reserve(min(position + more, 20 * page_size))
        try:
            table.see(position, position + more)
        except OutOfWindowPages:
            continue
        seen[which] = range(min(windows.first_seen(position), len(table)), min(position + more, len(table)))
        kept = np.concatenate([each.slots(span.start, span.stop) for each, span in zip(tables, seen, strict=True)])
        slots = windows.slots_of(kept)
        assert len(set(slots.tolist())) == len(slots) and (slots < 24).all()
        assert windows.on_device(torch.from_numpy(kept)).tolist() == slots.tolist()
        own = kept[: len(seen[0])]
        if len(own) and own[-1] - own[0] == len(own) - 1 and (np.diff(own) == 1).all():
            run = windows.run_of(slice(int(own[0]), int(own[-1]) + 1))
            side_by_side = bool((np.diff(slots[: len(own)]) == 1).all())
            assert (run is None) != side_by_side
            assert run is None or list(range(run.start, run.stop)) == slots[: len(own)].tolist()
    for table in tables:
        table.release()
    assert (pool.free_pages, windows.free_pages) == (64, windows.total_pages)


def test_a_table_that_has_seen_no_chunk_yet_and_one_that_is_behind_its_chunk_hold_none_and_know_from_where() -> None:
    spans = ALL, Span(chunk=8)
    table = PageTable(PagePool(8, 4, spans, WindowPages(8, 4, 4, spans[1:])))
    table.reserve(8)
    assert table.first_in_window == 0
    table.see(8, 8)  # as a session that begins behind what others have computed
    assert table.first_in_window == 8

"""Drafters whose KV takes a share of a device's memory: as many slots as fit with all that is kept by slot, and the log says so."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from specsplit.errors import LoadError
from specsplit.model.pages.room import MemoryShare
from specsplit_drafter.kinds.block_model import BlockModel
from specsplit_drafter.kinds.heads import HeadModel
from tests.drafter.block_toys import block_head
from tests.drafter.group_toys import model_of
from tests.drafter.head_toys import head_of
from tests.support.meshes import mesh_of

FREE = 1 << 20


def share_of(free: int, sessions: int = 1000) -> MemoryShare:
    return MemoryShare(0.5, sessions, free=lambda _: free, drafts=32)


def taken(model: HeadModel) -> int:
    return sum(runner.kv.nbytes for runner in model.runners) + sum(each.nbytes for each in model.states)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mimo", "stacked"])
@pytest.mark.parametrize("stored", ["auto", "fp8_e4m3"])
def test_a_head_takes_its_share_with_all_steps_and_their_states(
    name: str, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = HeadModel(head_of(name), share_of(FREE), kv_cache_dtype=stored)
    slots = model.pools[0].total_pages
    assert {pool.total_pages for pool in model.pools} == {slots}
    assert FREE / 2 - taken(model) / slots < taken(model) <= FREE / 2
    assert f"KV has room for {slots} tokens, 0.00 GiB, since kv_tokens is not set (kv_share = 0.5)" in caplog.text
    assert "of cpu are left for" in caplog.text


def test_a_head_takes_no_more_than_all_its_sessions_fill() -> None:
    head = head_of("eagle")
    model = HeadModel(head, share_of(FREE << 4, sessions=2))
    assert model.pools[0].total_pages == 2 * (head.shape.max_context + 32)


def test_a_block_drafter_takes_its_share_with_the_slots_of_blocks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    free = 8 * FREE
    model = BlockModel(block_head("dflash"), share_of(free))
    slots = model.pool.total_pages - len(model.scratch)
    nbytes = model.pool.total_pages * 2 * 2 * 16 * 4
    assert free / 2 - 1024 < nbytes <= free / 2
    assert model.pool.free_pages == slots
    assert f"KV has room for {slots} tokens" in caplog.text


@pytest.mark.parametrize("name", ["standalone", "mimo"])
def test_ranks_of_a_group_come_to_the_same(name: str) -> None:
    meshes = mesh_of(2)
    makes = [model_of(name, mesh, share_of(free)) for mesh, free in zip(meshes, (2 * FREE, FREE), strict=True)]
    with ThreadPoolExecutor(2) as threads:
        models = list(threads.map(lambda make: make(), makes))
    (slots,) = {pool.total_pages for model in models for pool in model.pools}
    assert slots == model_of(name, None, share_of(FREE))().pools[0].total_pages


def test_too_little_room_is_refused() -> None:
    for make in (
        lambda: HeadModel(head_of("eagle"), share_of(1000)),
        lambda: BlockModel(block_head("dflash"), share_of(1000)),
    ):
        with pytest.raises(LoadError, match=r"kv_share leaves 0.00 GiB .* hold 0 tokens, expected 256 at least"):
            make()

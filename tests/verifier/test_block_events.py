"""Subscribers know which blocks of tokens the prefix cache has, whatever becomes of them, or are told that they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import common_pb2

from specsplit.engine import Block, BlockBatch, BlocksRemoved, BlocksStored
from specsplit.errors import Exhausted, Unavailable
from specsplit.model.pages.pool import PagePool
from specsplit_verifier.edge.block_events import (
    MOST_SUBSCRIBERS,
    MOST_UNREAD,
    PART,
    BlockEvents,
    in_order,
    parts_of,
)
from specsplit_verifier.records.events import UnwatchBlocks, WatchBlocks
from specsplit_verifier.schedule.block_log import BlockLog
from specsplit_verifier.schedule.prefix_cache import PrefixCache
from tests.support.engine_protocol import answer, failure, request
from tests.support.toys import letter
from tests.verifier.test_gateways import letters, verifier


def chain(count: int, name: str = "x") -> list[Block]:
    """Blocks of one text."""
    digests = [f"{name}{number}".encode() for number in range(count)]
    return [Block(digest, digests[number - 1] if number else b"", (number,)) for number, digest in enumerate(digests)]


@given(st.data())
def test_a_block_comes_behind_its_parent_in_whatever_order_they_are_known(data: st.DataObject) -> None:
    blocks = [*chain(5, "a"), *chain(3, "b"), Block(b"c", b"a2", (9,)), Block(b"d", b"gone", (9,))]
    shuffled = data.draw(st.permutations(blocks))
    ordered = in_order(shuffled)
    assert sorted(block.digest for block in ordered) == sorted(block.digest for block in blocks)
    places = {block.digest: place for place, block in enumerate(ordered)}
    assert all(places.get(block.parent, -1) < places[block.digest] for block in ordered)


@pytest.mark.parametrize("count", [0, 1, PART, PART + 1])
def test_what_is_there_comes_in_parts_the_last_of_which_has_the_latest_number(count: int) -> None:
    batches = [*parts_of(chain(count), 100, 1.0)]
    told = [
        block
        for batch in batches
        for change in batch.changes
        if isinstance(change, BlocksStored)
        for block in change.blocks
    ]
    assert told == chain(count)
    assert [batch.sequence for batch in batches] == [*range(101 - len(batches), 101)]
    assert [batch.part.index for batch in batches if batch.part] == [*range(len(batches))]
    assert {(batch.part.parts, batch.part.blocks) for batch in batches if batch.part} == {(len(batches), count)}


TEXT = st.lists(st.integers(0, 1), min_size=4, max_size=24)
ORDERS = st.sampled_from(["put", "evict", "flush"])


class View(dict[bytes, Block]):
    """What a watcher makes of what he is told."""

    def begin(self, blocks: Sequence[Block]) -> None:
        self.update((block.digest, block) for block in blocks)

    def changed(self, changes: Sequence[BlocksStored | BlocksRemoved]) -> None:
        for change in changes:
            if isinstance(change, BlocksStored):
                assert not self.keys() & {block.digest for block in change.blocks}, "nothing is told twice"
                self.begin(change.blocks)
            else:
                for digest in change.digests:
                    del self[digest]


@given(st.lists(TEXT, max_size=6), st.integers(0, 6), st.lists(ORDERS, max_size=8), st.data())
def test_who_follows_the_changes_knows_what_the_cache_has(
    before: list[list[int]], evicted: int, orders: list[str], data: st.DataObject
) -> None:
    """Whatever was there when he began to watch, and whatever happens since."""
    pool = PagePool(128, 4)
    cache = PrefixCache(pool)
    view = View()
    for text in before:
        put(pool, cache, text)
    cache.evict(min(evicted, cache.idle_pages))
    cache.blocks.watch(WatchBlocks(view.begin, view.changed))
    for order in orders:
        match order:
            case "put":
                put(pool, cache, data.draw(TEXT))
            case "evict":
                cache.evict(data.draw(st.integers(0, cache.idle_pages)))
            case _:
                assert cache.flush()[1] == 0
        if data.draw(st.booleans()):
            cache.blocks.tell()
    cache.blocks.tell()
    assert len(cache.blocks) == len(view) == cache.idle_pages
    assert cache.are_known([*view]) == bytes([1]) * len(view)
    assert all(digest == named(cache, block) for digest, block in view.items()), "its tokens are those of its page"


def named(cache: PrefixCache, block: Block) -> bytes:
    """The digest that the cache makes of the tokens of a block behind its parent."""
    digests = [block.parent] if block.parent else []
    cache.extend(digests, [0] * 4 * len(digests) + [*block.tokens], len(digests) + 1)
    return digests[-1]


def put(pool: PagePool, cache: PrefixCache, tokens: Sequence[int]) -> None:
    """A session that computed whole pages of these tokens, and is gone."""
    full = len(tokens) // 4
    digests: list[bytes] = []
    cache.extend(digests, tokens, full)
    pages = pool.allocate(full)
    if new := cache.put(digests, pages):
        cache.blocks.stored(digests, 0, new, tokens[: 4 * full])
    pool.release(pages)
    cache.rest(digests)


def test_who_stops_watching_is_told_nothing_more() -> None:
    log, told = BlockLog(), list[object]()
    log.watch(WatchBlocks(told.append, told.append))
    log.watch(None)
    log.stored([b"a"], 0, [b"a"], [1, 2])
    log.tell()
    assert told == [[]] and len(log) == 1


class Engine:
    """Hands blocks to whoever watches, as an engine does."""

    def __init__(self) -> None:
        self.watcher: WatchBlocks | None = None
        self.events = BlockEvents(self.post, now=lambda: 1.0)
        self.failed = asyncio.Event()

    def post(self, event: WatchBlocks | UnwatchBlocks) -> None:
        self.watcher = event if isinstance(event, WatchBlocks) else None
        if self.watcher is not None:
            self.watcher.begin([])

    async def subscribed(self) -> Any:
        """A subscriber that has read what there is first."""
        batches = self.events.subscribe(self.failed)
        first = await anext(batches)
        assert first.part is not None and first.part.blocks == 0
        return batches


async def test_every_subscriber_hears_of_every_change_and_numbers_have_no_gap() -> None:
    engine = Engine()
    one = await engine.subscribed()
    assert engine.watcher is not None
    engine.watcher.changed([BlocksStored(chain(1)), BlocksRemoved([b"x0"])])
    first: BlockBatch = await anext(one)
    two = await engine.subscribed()
    engine.watcher.changed([BlocksStored(chain(2))])
    second, other = await anext(one), await anext(two)
    assert second == other and (second.sequence, second.first_event) == (first.sequence + 1, 3)
    await one.aclose()
    assert engine.watcher is not None, "another one is left"
    await two.aclose()
    assert engine.watcher is None


async def test_a_subscriber_that_does_not_read_is_cut_off_and_told_so() -> None:
    engine = Engine()
    slow, other = await engine.subscribed(), await engine.subscribed()
    assert engine.watcher is not None
    for _ in range(MOST_UNREAD // 1000 + 1):
        engine.watcher.changed([BlocksStored(chain(1000))])
        await asyncio.sleep(0)
        await anext(other)
    with pytest.raises(Exhausted, match=r"changes of 17,000 blocks were left unread"):
        await anext(slow)
    await other.aclose()


async def test_there_are_so_many_subscribers_at_most_and_all_end_with_the_engine() -> None:
    engine = Engine()
    subscribers = [await engine.subscribed() for _ in range(MOST_SUBSCRIBERS)]
    with pytest.raises(Exhausted, match="subscribers are told"):
        await engine.subscribed()
    await subscribers.pop().aclose()
    subscribers.append(await engine.subscribed())
    engine.failed.set()
    for subscriber in subscribers:
        with pytest.raises(Unavailable):
            await anext(subscriber)


async def read_until(
    call: Any, wanted: Callable[[list[common_pb2.KvCacheEvent]], bool]
) -> list[common_pb2.KvCacheEvent]:
    """The events of a stream up to where they are what is wanted."""
    events: list[common_pb2.KvCacheEvent] = []
    async with asyncio.timeout(60):
        while not wanted(events):
            events += (await call.read()).events
    return events


def stored(events: list[common_pb2.KvCacheEvent]) -> list[int]:
    """All tokens of stored blocks, in order."""
    return [token for event in events for block in event.stored.blocks for token in block.token_ids]


async def test_a_gateway_hears_which_beginnings_of_texts_a_verifier_has(alphabet: Path) -> None:
    prompt = letters("abcdefghijklmnop" * 3)
    subscribe = common_pb2.SubscribeKvEventsRequest()
    async with verifier(alphabet, kv_tokens=1024) as stub:
        call = stub.SubscribeKvEvents(subscribe)
        first = await call.read()
        assert [event.WhichOneof("data") for event in first.events] == ["cleared"]
        assert (first.snapshot.count, first.snapshot.blocks) == (1, 0)
        await answer(stub, request((*prompt, letter("a")), max_tokens=1))
        events = await read_until(call, lambda events: len(stored(events)) >= len(prompt))
        assert stored(events) == [*prompt]
        later = stub.SubscribeKvEvents(subscribe)
        snapshot = await later.read()
        assert stored([*snapshot.events]) == [*prompt] and snapshot.snapshot.blocks == 3
        hashes = [block.block_hash for event in snapshot.events for block in event.stored.blocks]
        outcome = await stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=10))
        assert (outcome.success, outcome.message) == (True, "3 cached pages were dropped")
        for each in (call, later):
            events = await read_until(each, lambda events: any(event.HasField("removed") for event in events))
            assert sorted(events[-1].removed.block_hashes) == sorted(hashes)
            each.cancel()


async def test_without_a_prefix_cache_nothing_is_told(alphabet: Path) -> None:
    async with verifier(alphabet, prefix_cache=False) as stub:
        error = await failure(stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()))
        assert "prefix_cache of the verifier is off" in str(error)

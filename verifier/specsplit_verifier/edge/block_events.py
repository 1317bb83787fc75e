"""Who is told which blocks of tokens the prefix cache has. On the event loop.

A subscriber is told all that is there, and then what changes. What he has not read yet is bounded: with more he is cut off, and told so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from specsplit.engine import Block, BlockBatch, BlockChange, BlocksStored, SnapshotPart
from specsplit.errors import Exhausted, SpecsplitError, Unavailable
from specsplit_verifier.records.events import UnwatchBlocks, WatchBlocks

T = TypeVar("T")

MOST_SUBSCRIBERS: Final = 16
MOST_UNREAD: Final = 16_384
"""Blocks in changes that a subscriber has not read, at most."""
PART: Final = 256
"""Blocks of one part of all that are there."""


class BlockEvents:
    """Watches the blocks of an engine while there is a subscriber, and tells all of them the same."""

    def __init__(
        self, post: Callable[[WatchBlocks | UnwatchBlocks], None], now: Callable[[], float] = time.time
    ) -> None:
        """`post` hands an event to the engine. `now`: seconds since 1970."""
        self._post = post
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._subscribers: set[_Subscriber] = set()
        self._sequence = round(now() * 1e6)
        """The number of the latest batch. One that is started anew goes on with larger ones; before the first there is room for parts."""
        self._events = 0

    async def subscribe(self, failed: asyncio.Event) -> AsyncGenerator[BlockBatch, None]:
        """Yield all that is there in parts, then what changes. `failed`: set when the engine is dead.

        Raises Exhausted if there are too many subscribers, or this one reads too slowly; Unavailable once the engine is dead.
        """
        if len(self._subscribers) >= MOST_SUBSCRIBERS:
            raise Exhausted(
                f"{MOST_SUBSCRIBERS} subscribers are told of cached blocks already, as many as there can be"
            )
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        dead = asyncio.create_task(failed.wait())
        dead.add_done_callback(partial(_end, subscriber))
        try:
            self._post(
                WatchBlocks(
                    partial(self._from_engine, partial(self._begin, subscriber)),
                    partial(self._from_engine, self._changed),
                )
            )
            async for batch in subscriber.batches():
                yield batch
        finally:
            dead.cancel()
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._post(UnwatchBlocks())

    def _from_engine(self, take: Callable[[Sequence[T]], None], told: Sequence[T]) -> None:
        self._loop.call_soon_threadsafe(take, told)

    def _begin(self, subscriber: _Subscriber, blocks: Sequence[Block]) -> None:
        subscriber.begin(blocks, self._sequence, self._now())

    def _changed(self, changes: Sequence[BlockChange]) -> None:
        self._sequence += 1
        batch = BlockBatch(self._sequence, self._now(), changes, self._events + 1)
        self._events += len(changes)
        for subscriber in self._subscribers:
            subscriber.put(batch)


def _end(subscriber: _Subscriber, dead: asyncio.Task[object]) -> None:
    if not dead.cancelled():
        subscriber.end(Unavailable("the engine of this verifier is dead; its log says why"))


class _Subscriber:
    """What one subscriber has not read."""

    def __init__(self) -> None:
        self._snapshot: tuple[Sequence[Block], int, float] | None = None
        """Blocks, the number of the last part, and when; None: he is to be told of nothing yet, or has been told of these."""
        self._unread: deque[BlockBatch] = deque()
        self._blocks = 0
        self._begun = False
        self._more = asyncio.Event()
        self._ended: SpecsplitError | None = None

    def begin(self, blocks: Sequence[Block], sequence: int, timestamp: float) -> None:
        """Tell him of these blocks first; the latest batch that they hold the changes of has that number."""
        self._snapshot, self._begun = (blocks, sequence, timestamp), True
        self._more.set()

    def put(self, batch: BlockBatch) -> None:
        """Tell him of changes, unless they came before what he is told first."""
        if not self._begun or self._ended is not None:
            return
        self._unread.append(batch)
        self._blocks += _size(batch)
        if self._blocks > MOST_UNREAD:
            self.end(
                Exhausted(
                    f"changes of {self._blocks:,} blocks were left unread, and no more are kept; subscribe again, and read"
                )
            )
        self._more.set()

    def end(self, error: SpecsplitError) -> None:
        """Tell him nothing more, and forget what he has not read."""
        self._ended = error
        self._unread.clear()
        self._more.set()

    async def batches(self) -> AsyncGenerator[BlockBatch, None]:
        """Yield what there is to tell as it comes. Raises what he was ended with."""
        while True:
            if self._ended is not None:
                raise self._ended
            if self._snapshot is not None:
                (blocks, sequence, timestamp), self._snapshot = self._snapshot, None
                for batch in parts_of(await asyncio.to_thread(in_order, blocks), sequence, timestamp):
                    yield batch
            elif self._unread:
                batch = self._unread.popleft()
                self._blocks -= _size(batch)
                yield batch
            else:
                self._more.clear()
                await self._more.wait()


def _size(batch: BlockBatch) -> int:
    return sum(len(change.blocks if isinstance(change, BlocksStored) else change.digests) for change in batch.changes)


def in_order(blocks: Sequence[Block]) -> list[Block]:
    """Order blocks so that each comes behind its parent, if that is among them."""
    known = {block.digest: block for block in blocks}
    ordered: dict[bytes, Block] = {}
    for block in blocks:
        ordered.update((each.digest, each) for each in reversed([*_unordered(block, known, ordered)]))
    return [*ordered.values()]


def _unordered(block: Block, known: Mapping[bytes, Block], ordered: Mapping[bytes, Block]) -> Iterator[Block]:
    """A block and those before it, from the last to the first, as far as they are known and not in order yet."""
    each: Block | None = block
    while each is not None and each.digest not in ordered:
        yield each
        each = known.get(each.parent)


def parts_of(blocks: Sequence[Block], sequence: int, timestamp: float) -> Iterator[BlockBatch]:
    """Cut all blocks into parts, at least one, the last of which has this number."""
    count = max(1, -(-len(blocks) // PART))
    for index in range(count):
        own = blocks[index * PART : (index + 1) * PART]
        changes = (BlocksStored(own),) if own else ()
        part = SnapshotPart(index, count, len(blocks))
        yield BlockBatch(sequence - count + 1 + index, timestamp, changes, part=part)

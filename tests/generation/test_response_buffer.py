"""What a caller has not read yet: gathered while a message is on its way, in order, bounded, and ended with everything before the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specsplit.errors import Cancelled, Exhausted
from specsplit.generation.burst import GATHERED
from specsplit.generation.listener import Listener
from specsplit.generation.response_buffer import ResponseBuffer
from specsplit.requests import Delta, GenerateEvent
from specsplit.stream_interval import Held
from specsplit.v1 import coordinator_pb2
from specsplit.wire.coordinator import generate_events, generate_response

Message = coordinator_pb2.GenerateResponse


class Source:
    """Events that come when a test puts them in; None is their end."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Sequence[Delta] | None] = asyncio.Queue()

    async def come(self, *events: Delta | None) -> None:
        await self.come_together(*(None if event is None else (event,) for event in events))

    async def come_together(self, *sets: Sequence[Delta] | None) -> None:
        for together in sets:
            self._events.put_nowait(together)
        for _ in range(3):  # until the buffer has taken them
            await asyncio.sleep(0)

    async def generate(self, listener: Listener) -> None:
        while (deltas := await self._events.get()) is not None:
            listener.hear(deltas)


def buffer(source: Source, choices: int = 1, max_bytes: int = 10_000) -> ResponseBuffer[Message]:
    def write(event: GenerateEvent, earlier: Sequence[Delta]) -> tuple[Message]:
        return (generate_response(event, earlier),)

    held = [Held[Delta](1) for _ in range(choices)]
    return ResponseBuffer(source.generate, held, write, max_bytes, 60.0, lambda: None)


def tokens(message: Message) -> list[int]:
    return [token for event in generate_events(message) if isinstance(event, Delta) for token in event.tokens]


def delta(token: int, index: int = 0) -> Delta:
    return Delta("x", (token,), index=index)


async def test_what_comes_while_a_message_is_on_its_way_leaves_as_one() -> None:
    source = Source()
    response = buffer(source)
    reading = response.read()
    await source.come(delta(1))
    assert tokens(await anext(reading)) == [1]
    await source.come(delta(2), delta(3))
    await source.come(delta(4))
    assert tokens(await anext(reading)) == [2, 3, 4]
    await source.come(None)
    with pytest.raises(StopAsyncIteration):
        await anext(reading)
    response.close()


async def test_what_came_at_once_leaves_as_one() -> None:
    source = Source()
    response = buffer(source)
    await source.come_together((replace(delta(1), num_correct_drafts=1), delta(2)), None)
    assert [tokens(message) async for message in response.read()] == [[1, 2]]
    response.close()


async def test_each_choice_has_a_message_of_its_own() -> None:
    source = Source()
    response = buffer(source, choices=2)
    reading = response.read()
    await source.come(delta(1))
    await anext(reading)
    await source.come(delta(2), delta(3, 1), delta(4), delta(5, 1), None)
    assert [tokens(message) async for message in reading] == [[2, 4], [3, 5]]
    response.close()


async def test_an_abort_comes_behind_what_was_gathered() -> None:
    source = Source()
    response = buffer(source)
    reading = response.read()
    await source.come(delta(1))
    await anext(reading)
    await source.come(delta(2), delta(3))
    response.abort(Cancelled("enough"))
    assert tokens(await anext(reading)) == [2, 3]
    with pytest.raises(Cancelled):
        await anext(reading)
    response.close()


async def test_what_is_gathered_is_bounded_and_counted() -> None:
    source = Source()
    response = buffer(source, max_bytes=2_000)
    reading = response.read()
    await source.come(delta(0))
    await anext(reading)
    for token in range(1, 1_000):
        await source.come(delta(token))
    sizes: list[int] = []

    async def read() -> None:
        async for message in reading:
            sizes.append(len(tokens(message)))

    with pytest.raises(Exhausted, match="unread"):
        await read()
    assert sizes and max(sizes) <= GATHERED + 1
    assert sum(sizes) < 1_000
    response.close()

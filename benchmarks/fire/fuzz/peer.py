"""A peer that answers calls of every kind by what honest ones say or have said: as it is, so that it is written down, or made hostile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor

from benchmarks.fire.fuzz.calls import JOIN, METHODS, UNBOUNDED, Ended
from benchmarks.fire.fuzz.corpus import Conversation, Corpus
from benchmarks.fire.fuzz.draws import Draws
from benchmarks.fire.fuzz.messages import hostile, read, shuffled
from specsplit.v1.cluster_pb2 import JoinResponse

Shown = list[tuple[str, str | bytes]]
Honest = Callable[[str, AsyncIterator[bytes], Shown], AsyncGenerator[bytes, None]]
"""What brings the answers to a call: of (/service/Method, its requests, the metadata that is passed on)."""
SULKS_S: Final = 6.0
"""A hostile peer that will not end a call does so after all, so long after its last message."""
_MOST_MORE: Final = 60
_SENTENCES: Final = ("", "x" * 3_000, "no: é語🦀", "%s")
_PASSED_ON: Final = frozenset({"authorization", "traceparent"})


def passed_on(channel: grpc.aio.Channel, ends: list[Ended] | None = None) -> Honest:
    """Pass every call on; how those ended that did not end well is added to `ends`."""

    async def answers(path: str, requests: AsyncIterator[bytes], shown: Shown) -> AsyncGenerator[bytes, None]:
        call = channel.stream_stream(path)(requests, metadata=shown)  # on the wire every call may stream both ways
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            if ends is not None:
                ends.append(Ended(error.code(), error.details() or ""))
            raise
        finally:
            call.cancel()

    return answers


def remembered(corpus: Corpus, draws: Draws, most: int = 0) -> Honest:
    """Answer as in one conversation, but shuffled; or, with `most`, as one began, and then up to so many answers of any."""

    async def answers(path: str, requests: AsyncIterator[bytes], _: Shown) -> AsyncGenerator[bytes, None]:
        reading = asyncio.create_task(_read(requests))
        chance, every = draws.chance, corpus.answers(path) or [b""]
        said = chance.choice([each.answers for each in corpus.of(path) if each.answers] or [every])
        if most:
            said = [said[0], *chance.choices(every, k=chance.randint(1, most))]
        elif METHODS[path].streams_out:
            said = draws(shuffled(said, every))
        try:
            for answer in said:
                yield answer
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.005)))
            await asyncio.sleep(chance.uniform(0, 1) if most else 0)  # for what was said to be obeyed
        finally:
            reading.cancel()

    return answers


async def _read(requests: AsyncIterator[bytes]) -> None:
    async for _ in requests:
        pass


@dataclass(frozen=True, slots=True)
class Hostility:
    """What becomes of what honest ones say. The shares are of messages."""

    draws: Draws
    broken: float
    made: float
    kept: float
    more: float = 0.0
    """The share that others come behind."""
    ends: float = 0.0
    """The share of answers behind which a peer leaves."""
    lost: float = 0.0
    """The share that nothing is said in the place of."""

    def replacements(self, honest: bytes, kind: Descriptor) -> Iterator[bytes]:
        """What is said in the place of an honest message: one, now and then a few more, or none."""
        if self.draws.chance.random() < self.lost:
            return
        yield hostile(self.draws, honest, kind, self.broken, self.made, self.kept)
        if self.draws.chance.random() < self.more:
            for _ in range(self.draws.chance.randint(1, _MOST_MORE)):
                yield hostile(self.draws, honest, kind, self.broken, 0.2, 0.2)

    async def leave(self, context: Any) -> None:
        """End the call: late, quietly, with some status, or with details that are none."""
        chance = self.draws.chance
        drawn = chance.random()
        if drawn < 0.1:
            await asyncio.sleep(SULKS_S)
        if drawn >= 0.6:
            details = (("grpc-status-details-bin", chance.randbytes(20)),) if drawn < 0.7 else ()
            await context.abort(chance.choice([*grpc.StatusCode][1:]), chance.choice(_SENTENCES), details)


class Peer(grpc.GenericRpcHandler):
    """Answers whatever is called, unary or streaming, and keeps what both sides said. It is hostile where it is given how."""

    def __init__(
        self, honest: Honest, answers: Hostility | None = None, requests: Hostility | None = None,
        messages: Counter[str] | None = None,
    ) -> None:  # fmt: skip
        """`answers` is for whom it answers, `requests` for whom it passes them on to; hostile `messages` are counted by method."""
        self.conversations: list[Conversation] = []
        self._honest = honest
        self._answers, self._requests = answers, requests
        self._messages: Counter[str] = Counter() if messages is None else messages

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Every call may be streaming on both sides, as far as the wire goes."""
        shown = [(key, value) for key, value in handler_call_details.invocation_metadata if key in _PASSED_ON]
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, str(handler_call_details.method), shown))

    async def _answer(
        self, path: str, shown: Shown, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        said, method, hostility = Conversation(path), METHODS[path], self._answers
        self.conversations.append(said)

        async def heard() -> AsyncIterator[bytes]:
            async for request in requests:
                said.requests.append(request)
                for each in self._replaced(request, self._requests, method.request, method.name):
                    yield each

        try:
            async with aclosing(self._honest(path, heard(), shown)) as answers:
                async for answer in answers:
                    said.answers.append(answer)
                    first = method is JOIN and len(said.answers) == 1  # or the member would read no more
                    for each in self._replaced(
                        answer, None if first else hostility, method.answer, f"{method.name}, answers"
                    ):
                        yield each
                    if hostility and hostility.draws.chance.random() < hostility.ends:
                        break
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        if hostility:
            await hostility.leave(context)

    def _replaced(self, honest: bytes, hostility: Hostility | None, kind: Descriptor, name: str) -> Iterator[bytes]:
        """What is said in the place of this. Nobody is dismissed: that a member would have to obey."""
        for each in hostility.replacements(honest, kind) if hostility else ():
            directive = read(JoinResponse, each) if kind is JOIN.answer else None
            if directive is None or not directive.HasField("drain"):
                self._messages[name] += 1
                yield each
        if hostility is None:
            yield honest


@asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler, at: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """host:port of a server of this process with this handler. At the end its calls are cut off."""
    server = grpc.aio.server(options=UNBOUNDED)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(at)
    await server.start()
    try:
        yield f"{at.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(None)

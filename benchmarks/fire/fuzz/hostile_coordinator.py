"""A hostile coordinator, to members that join it and to programs that ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.generated import kind_of
from benchmarks.fire.fuzz.scene import Scene, Spite
from benchmarks.fire.fuzz.servers import UNBOUNDED, serving
from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError
from specsplit.rpc import CLUSTER_SERVICE
from specsplit.v1 import cluster_pb2, coordinator_pb2
from specsplit.v1.cluster_pb2 import JoinResponse

_MOST: Final = 150
"""Directives of one stream."""
_STREAM_S: Final = 1.0
_HANG_S: Final = 20.0
_CODES: Final = tuple(grpc.StatusCode)


class Directing(grpc.GenericRpcHandler):
    """Every Join of a member is a case."""

    def __init__(self, scene: Scene, seed: int, numbers: Iterator[int]) -> None:
        self._scene = scene
        self._seed = seed
        self._numbers = numbers
        said = scene.corpus.answers(f"/{CLUSTER_SERVICE}/Join")
        self._said = [data for data in said if not JoinResponse.FromString(data).HasField("drain")]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Whatever is called."""
        return grpc.stream_stream_rpc_method_handler(self._direct)

    async def _direct(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        case = Case(self._seed, "coordinator", next(self._numbers))
        spite = Spite.of(case.chance(), most=300)
        chance, tally = spite.chance, self._scene.tally
        reading = asyncio.create_task(_read(requests))
        tally.cases += 1
        sent = 0
        try:
            yield _registered(chance.choice((1, 5, 100, 100, 2**32 - 1)))
            for message in self._messages(spite):
                sent += 1
                yield message
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.005)))
            await asyncio.sleep(chance.uniform(0, _STREAM_S))
            if chance.random() < 0.4:
                await context.abort(chance.choice(_CODES[1:]), chance.choice(("", "x" * 3_000, "no: é語🦀")))
        finally:
            reading.cancel()
            tally.answered("ClusterService.Join", sent)

    def _messages(self, spite: Spite) -> Iterator[bytes]:
        """Directives, of which none dismisses the member: that it would have to obey."""
        broken = spite.chance.choice((0.0, 0.01, 0.1))
        for _ in range(spite.chance.randint(1, _MOST)):
            honest = spite.chance.choice(self._said) if self._said else None
            data = spite.message(honest, kind_of(JoinResponse), broken=broken, made=0.2 if broken else 0.02, kept=0.3)
            if not _drains(data):
                yield data


@asynccontextmanager
async def directing(scene: Scene, seed: int, first: int = 0) -> AsyncIterator[None]:
    """Be the coordinator that stray members look for; cases are numbered from `first`."""
    server = grpc.aio.server(options=UNBOUNDED)
    server.add_generic_rpc_handlers((Directing(scene, seed, count(first)),))
    server.add_insecure_port(scene.ground.hostile)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


class Answering:
    """Programs that ask a hostile coordinator: whatever it answers, the client library raises errors of its own or none."""

    name = "answers"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def act(self, case: Case) -> None:
        """One program, which asks for everything."""
        handler = _Answerer(Spite.of(case.chance(), most=500), self._scene)
        async with serving(handler) as address, AsyncClient(address) as client:
            for ask in _questions(client):
                await self._asked(case, ask)
        self._scene.tally.answered("CoordinatorService.*", handler.sent)

    async def _asked(self, case: Case, ask: Callable[[], Awaitable[object]]) -> None:
        tally = self._scene.tally
        try:
            async with asyncio.timeout(_HANG_S):
                await ask()
        except SpecsplitError as error:
            tally.status("the client library", type(error).__name__)
        except TimeoutError:
            tally.fault(case, f"the client library hung for {_HANG_S:g} s")
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            tally.fault(case, f"the client library raised {error!r}")
        else:
            tally.status("the client library", "OK")


def _questions(client: AsyncClient) -> Sequence[Callable[[], Awaitable[object]]]:
    return (
        lambda: client.generate("a", max_tokens=4, logprobs=1, timeout_s=5),
        lambda: client.generate((1, 2), max_tokens=30, n=2, timeout_s=5),
        lambda: client.model_info(timeout_s=5),
        lambda: client.cluster(timeout_s=5),
        lambda: client.plan(timeout_s=5),
        lambda: client.tracing(timeout_s=5),
        lambda: client.set_plan(timeout_s=5),
        lambda: client.set_tracing(timeout_s=5),
    )


class _Answerer(grpc.GenericRpcHandler):
    def __init__(self, spite: Spite, scene: Scene) -> None:
        self.sent = 0
        self._spite = spite
        self._corpus = scene.corpus

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Whatever is called."""
        method = str(handler_call_details.method)
        answer = coordinator_pb2.DESCRIPTOR.message_types_by_name[f"{method.rpartition('/')[2]}Response"]

        async def answered(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            said = self._corpus.of(method)
            honest = self._spite.chance.choice(said).answers if said else [b""]
            for message in self._spite.mutator.shuffled(honest, honest) if method.endswith("Generate") else honest[:1]:
                self.sent += 1
                yield self._spite.message(message, answer, broken=0.1, made=0.1, kept=0.6)

        return grpc.stream_stream_rpc_method_handler(answered)


def _registered(interval_ms: int) -> bytes:
    return JoinResponse(
        registered=cluster_pb2.RegisteredDirective(heartbeat_interval_ms=interval_ms)
    ).SerializeToString()


def _drains(data: bytes) -> bool:
    try:
        return JoinResponse.FromString(data).HasField("drain")
    except DecodeError:
        return False


async def _read(requests: AsyncIterator[bytes]) -> None:
    async for _ in requests:
        pass

"""A hostile verifier: it joins a coordinator, reports what it likes, and answers sessions with events that may be right, or anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from benchmarks.fire.fuzz.calls import LISTENS_S, Manner, call, methods_of
from benchmarks.fire.fuzz.case import Case
from benchmarks.fire.fuzz.generated import kind_of
from benchmarks.fire.fuzz.scene import Scene, Spite
from benchmarks.fire.fuzz.servers import serving
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, VERIFIER_SERVICE
from specsplit.v1 import cluster_pb2, verifier_pb2
from specsplit.v1.coordinator_pb2 import GenerateRequest

_PATIENCE_S: Final = 3.0
"""The deadline of half of all requests. The others have none, and hang if they are not over after LISTENS_S."""
_REPORTS: Final = 30
_REQUESTS: Final = 4
_DECODE: Final = f"/{VERIFIER_SERVICE}/Decode"
_CODES: Final = tuple(grpc.StatusCode)


class HostileVerifier:
    """In every case another member, which is there while a few requests run."""

    name = "verifier"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        by_path = {each.path: each for each in methods_of(CLUSTER_SERVICE, COORDINATOR_SERVICE)}
        self._join = by_path[f"/{CLUSTER_SERVICE}/Join"]
        self._generate = by_path[f"/{COORDINATOR_SERVICE}/Generate"]
        self._said = [
            each.requests
            for each in scene.corpus.of(self._join.path)
            if each.requests and cluster_pb2.JoinRequest.FromString(each.requests[0]).register.HasField("verifier")
        ]
        self._sessions = [each.answers for each in scene.corpus.of(_DECODE) if each.answers]

    async def act(self, case: Case) -> None:
        """Join, be asked, leave."""
        spite = Spite.of(case.chance(), most=500)
        handler = _Verifier(spite, self._sessions)
        scene, lone = self._scene, self._scene.ground.lone
        async with serving(handler) as address:
            reports = self._reports(case, spite, address)
            manner = Manner(scene.ground.shown("member"), 20.0, (0.02,), hangs_up=False, listens_s=_PATIENCE_S)
            joined = asyncio.create_task(call(scene.channel(lone), self._join, reports, manner))
            await asyncio.sleep(0.05)
            await asyncio.gather(*(self._asked(case, *request) for request in self._requests(spite)))
            joined.cancel()
            with suppress(asyncio.CancelledError):
                if (fault := (await joined).fault(self._join)) is not None:
                    scene.tally.fault(case, fault)
        scene.tally.answered("VerifierService.Decode", handler.sent)

    def _reports(self, case: Case, spite: Spite, address: str) -> Iterator[bytes]:
        """Who it is, as an honest verifier says it, and then how it fares."""
        said = spite.chance.choice(self._said)
        first = cluster_pb2.JoinRequest.FromString(said[0])
        first.register.member_id, first.register.address = f"hostile-{case.number}", address
        yield first.SerializeToString()
        for _ in range(_REPORTS):
            self._scene.tally.messages[self._join.name] += 1
            yield spite.message(spite.chance.choice(said[1:]), self._join.request, broken=0.01, made=0.02, kept=0.5)

    def _requests(self, spite: Spite) -> list[tuple[bytes, float | None]]:
        """What honest clients have asked, of which some is kept, and deadlines."""
        asked = self._scene.corpus.requests(self._generate.path)
        return [
            (
                spite.message(spite.chance.choice(asked), kind_of(GenerateRequest), broken=0.0, made=0.0, kept=0.9),
                spite.chance.choice((_PATIENCE_S, None)),
            )
            for _ in range(spite.chance.randint(1, _REQUESTS))
        ]

    async def _asked(self, case: Case, request: bytes, deadline_s: float | None) -> None:
        """A request on its way to whoever decodes it. It need not succeed; it has to end, and in time."""
        scene = self._scene
        manner = Manner(scene.ground.shown("client"), deadline_s)
        end = await call(scene.channel(scene.ground.lone), self._generate, [request], manner)
        scene.tally.status("CoordinatorService.Generate with a hostile verifier", end.code.name)
        if end.code is grpc.StatusCode.CANCELLED:
            scene.tally.fault(case, f"a request hung: it was not over after {LISTENS_S:g} s")
        elif (fault := end.fault(self._generate)) is not None:
            scene.tally.fault(case, fault)


class _Verifier(grpc.GenericRpcHandler):
    def __init__(self, spite: Spite, sessions: Sequence[Sequence[bytes]]) -> None:
        self.sent = 0
        self._spite = spite
        self._sessions = sessions
        self._others = [message for session in sessions for message in session]
        self._broken = spite.chance.choice((0.0, 0.02, 0.2))
        self._kept = spite.chance.choice((0.3, 0.8, 0.95))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Whatever is called."""
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        chance = self._spite.chance
        async for _ in requests:
            break
        for message in self._spite.mutator.shuffled(chance.choice(self._sessions), self._others):
            self.sent += 1
            yield self._spite.message(
                message, kind_of(verifier_pb2.DecodeResponse), broken=self._broken, made=self._broken, kept=self._kept
            )
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.001)))
        drawn = chance.random()
        if drawn < 0.1:
            await asyncio.sleep(2 * _PATIENCE_S)
        elif drawn < 0.4:
            details = (("grpc-status-details-bin", chance.randbytes(20)),) if drawn < 0.2 else ()
            await context.abort(chance.choice(_CODES[1:]), chance.choice(("", "x" * 3_000, "no: é語🦀")), details)

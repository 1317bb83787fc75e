"""Members of a cluster that do nothing but report: real Join streams from one process. Its one verifier ends every session at once.

`python -m benchmarks.crowd COORDINATOR MODEL VERIFIERS DRAFTERS` writes a line when all have joined and every verifier's roster is whole.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from specsplit.membership import Register, Role, Roster
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.options import server_options
from specsplit.sessions import Begin, Finished, Tokens
from specsplit.settings import TransportSettings
from specsplit.text.vocabulary import vocabulary_of
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import DrafterInfo, DrafterKind, FinishReason, Load, ModelInfo, SpeculationStatistics, Usage
from specsplit.wire import sessions as many
from specsplit.wire import verifier as wire

CONTEXT: Final = 512
SESSIONS: Final = 16
WRITTEN: Final = (5,)
"""The answer to every request."""


class Ender(verifier_pb2_grpc.VerifierServiceServicer):
    """Decodes one token, and that is the end."""

    async def GetModelInfo(self, request: object, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802 (the name is the protocol's)
        """Refuse: nobody asks."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this is a member of a benchmark")

    async def Watch(self, request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:  # noqa: N802 (the name is the protocol's)
        """Refuse: nobody looks."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this is a member of a benchmark")
        yield

    UpdateWeights = verifier_pb2_grpc.VerifierServiceServicer.UpdateWeights

    async def Decode(self, request: object, context: object) -> AsyncIterator[Any]:  # noqa: N802 (the name is the protocol's)
        """One session."""
        counted = SpeculationStatistics(steps=1)
        yield wire.decode_response(Tokens(WRITTEN, 0, counted))
        yield wire.decode_response(Finished(FinishReason.LENGTH, None, Usage(1, len(WRITTEN)), counted))

    async def DecodeSessions(self, request_iterator: AsyncIterator[Any], context: object) -> AsyncIterator[Any]:  # noqa: N802 (the name is the protocol's)
        """Many."""
        counted = SpeculationStatistics(steps=1)
        end = Finished(FinishReason.LENGTH, None, Usage(1, len(WRITTEN)), counted)
        async for request in request_iterator:
            begun = [each for each, event in many.sessions_request_events(request, 2**32) if isinstance(event, Begin)]
            for message in many.sessions_responses((each, end, (Tokens(WRITTEN, 0, counted),)) for each in begun):
                yield message


async def _serve() -> str:
    server = grpc.aio.server(options=server_options(TransportSettings()))
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Ender(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _kept.append(server)
    return f"127.0.0.1:{port}"


_kept: list[object] = []
"""What has to live as long as the process."""


class Crowd:
    """All members, and which of the verifiers know every drafter."""

    def __init__(self, coordinator: str, address: str, drafters: int) -> None:
        self._dialled = Coordinators(coordinator)
        self._address = address
        self._drafters = drafters
        self._lacking = set[str]()
        self._whole = asyncio.Event()

    def join(self, name: str, role: Role) -> Memberships:
        """One member, which stays for good."""
        if isinstance(role, ModelInfo):
            self._lacking.add(name)
        membership = Memberships(
            self._dialled, Register(name, self._address, role, SESSIONS), Load, on_roster=partial(self._told, name)
        )
        _kept.append(asyncio.create_task(membership.run()))
        return membership

    async def whole(self) -> None:
        """Return once every verifier has been told of every drafter."""
        while self._lacking:
            self._whole.clear()
            await self._whole.wait()

    def _told(self, name: str, roster: Roster) -> None:
        if len(roster.drafters) == self._drafters:
            self._lacking.discard(name)
            self._whole.set()


async def _main(coordinator: str, model: Path, verifiers: int, drafters: int) -> None:
    logging.disable(logging.INFO)
    vocabulary = vocabulary_of(model)
    crowd = Crowd(coordinator, await _serve(), drafters)
    target, ngram = ModelInfo("toy", vocabulary, CONTEXT, (0,)), DrafterInfo(DrafterKind.NGRAM, "", None, CONTEXT)
    members = [crowd.join(f"verifier-{number}", target) for number in range(verifiers)]
    members += [crowd.join(f"drafter-{number}", ngram) for number in range(drafters)]
    await asyncio.gather(*(member.wait_joined() for member in members))
    await crowd.whole()
    print("all have joined", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))

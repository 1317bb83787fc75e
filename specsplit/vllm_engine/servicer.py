"""The edge of the engine protocol, the same for every service that generates: parse, one call, serialise."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2_grpc  # pyright: ignore[reportMissingTypeStubs]

from specsplit.build import build
from specsplit.clock import Clock
from specsplit.engine import StopProfile
from specsplit.errors import Unsupported
from specsplit.generation.delivery import Delivery
from specsplit.generation.on_demand import OnDemand
from specsplit.rpc import Context
from specsplit.text.model_config import model_config
from specsplit.vllm_engine.backend import EngineBackend
from specsplit.vllm_engine.tokenizer_archive import archive_of
from specsplit.wire import vllm as wire
from specsplit.wire import vllm_operations as operations


def _today() -> datetime:
    return datetime.now(UTC)


class VllmEngineServicer:
    """Serves gateways."""

    def __init__(
        self,
        delivery: Delivery,
        backend: EngineBackend,
        folder: Path,
        clock: Clock,
        max_message_bytes: int,
        today: Callable[[], datetime] = _today,
        adapter: str = "",
    ) -> None:
        """`folder` holds the tokenizer and config.json. `max_message_bytes`: of one message of an answer.

        `adapter` is what every request is decoded with, since the protocol has no field for it; empty: none.

        Raises LoadError, naming the file, if it cannot be read.
        """
        self._delivery = delivery
        self._max_message_bytes = max_message_bytes
        self._backend = backend
        self._adapter = adapter
        self._folder = str(folder.resolve())
        self._config = model_config(folder)
        self._archive = OnDemand(partial(archive_of, folder))
        self._clock = clock
        self._today = today
        self._began_at = clock.now()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve the protocol there."""
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)  # pyright: ignore[reportUnknownMemberType]

    async def Generate(  # noqa: N802 (the name is the protocol's)
        self, request: wire.GenerateMessage, context: Context
    ) -> AsyncGenerator[wire.GenerateResponseMessage, None]:
        """Stream the chunks of every choice if the request is streamed, and at its end what completes it."""
        most = self._max_message_bytes
        parse = partial(wire.generate_from_wire, max_message_bytes=most, adapter=self._adapter)
        asked = self._delivery.read(parse, request)
        write = wire.Responses(asked, streamed=request.stream, max_message_bytes=most)
        async with aclosing(self._delivery.answer(asked, context, write)) as messages:
            async for message in messages:
                yield message

    async def Abort(self, request: wire.AbortMessage, context: Context) -> wire.AbortedMessage:  # noqa: N802
        """End requests."""
        self._delivery.abort(wire.abort_from_wire(request))
        return wire.aborted_to_wire()

    async def HealthCheck(self, request: wire.HealthQuestion, context: Context) -> wire.HealthMessage:  # noqa: N802
        """Tell whether requests are taken, and if not why. Raises Unavailable while nobody knows yet what is served."""
        return wire.health_to_wire(self._backend.problem())

    async def GetModelInfo(  # noqa: N802
        self, request: wire.ModelInfoQuestion, context: Context
    ) -> wire.ModelInfoMessage:
        """Tell what is served."""
        return wire.model_info_to_wire(self._backend.model(), self._config, self._folder)

    async def GetServerInfo(  # noqa: N802
        self, request: wire.ServerInfoQuestion, context: Context
    ) -> wire.ServerInfoMessage:
        """Tell how long this service has run, and how many requests it has."""
        return wire.server_info_to_wire(self._backend.load(), self._clock.now() - self._began_at)

    async def GetLoads(self, request: wire.LoadsQuestion, context: Context) -> wire.LoadsMessage:  # noqa: N802
        """Tell how busy the service is; all that it places requests on counts as one rank."""
        loads = [self._backend.load()] if wire.loads_from_wire(request) else []
        return wire.loads_to_wire(loads, self._today().isoformat(), build())

    async def GetTokenizer(  # noqa: N802
        self, request: wire.TokenizerQuestion, context: Context
    ) -> AsyncGenerator[wire.TokenizerMessage, None]:
        """Stream the files of the tokenizer as a zip."""
        archive = await self._archive.get()
        for message in wire.archive_to_wire(archive.data, archive.sha256):
            yield message

    async def Embed(self, request: object, context: Context) -> NoReturn:  # noqa: N802
        """Refuse: only text is generated."""
        raise Unsupported("Embed", "is not supported: only text is generated here, and nothing is embedded")

    async def FlushCache(  # noqa: N802
        self, request: operations.FlushMessage, context: Context
    ) -> operations.FlushedMessage:
        """Drop what is cached of texts and in no session's use; a coordinator has every verifier do so. An operator's call."""
        return operations.flushed_to_wire(await self._backend.operate(operations.flush_from_wire(request)))

    async def StartProfile(  # noqa: N802
        self, request: operations.StartProfileMessage, context: Context
    ) -> operations.ProfileMessage:
        """Profile what the engine computes, with torch's profiler; a coordinator has every verifier do so. An operator's call."""
        return operations.profile_to_wire(await self._backend.operate(operations.start_profile_from_wire(request)))

    async def StopProfile(  # noqa: N802
        self, request: operations.StopProfileMessage, context: Context
    ) -> operations.ProfileMessage:
        """End a profile, and write it to a file in the verifier's profile_dir. An operator's call."""
        return operations.profile_to_wire(await self._backend.operate(StopProfile()))

    async def SubscribeKvEvents(  # noqa: N802
        self, request: operations.SubscribeMessage, context: Context
    ) -> AsyncGenerator[operations.BlockBatchMessage, None]:
        """Stream which blocks of tokens are cached, then what changes of it. A coordinator refuses: it places requests by that itself."""
        operations.subscribe_from_wire(request)
        async with aclosing(self._backend.block_events()) as batches:
            async for batch in batches:
                yield operations.block_batch_to_wire(batch)

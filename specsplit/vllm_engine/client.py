"""A coordinator's calls to the engines of its verifiers, in the engine protocol."""

from __future__ import annotations

from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2_grpc  # pyright: ignore[reportMissingTypeStubs]

from specsplit.engine import FlushCache, Operation, Outcome, StartProfile
from specsplit.wire.vllm_operations import operation_to_wire, outcome_from_wire


class OperationCall:
    """One operation that an engine was asked for."""

    def __init__(self, channel: grpc.aio.Channel, operation: Operation, timeout_s: float) -> None:
        """Begins the call."""
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)  # pyright: ignore[reportUnknownMemberType]
        match operation:
            case FlushCache():
                method = stub.FlushCache
            case StartProfile():
                method = stub.StartProfile
            case _:
                method = stub.StopProfile
        self._call: Any = method(operation_to_wire(operation), timeout=timeout_s)

    def cancel(self) -> bool:
        """End the call."""
        return bool(self._call.cancel())

    async def outcome(self) -> Outcome:
        """Wait for what comes of it. Raises grpc.aio.AioRpcError."""
        return outcome_from_wire(await self._call)

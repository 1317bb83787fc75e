"""A small servicer and a running server around it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from specsplit.rpc import COORDINATOR_SERVICE, Context, Server, dial
from specsplit.settings import CoordinatorSettings
from specsplit.v1 import coordinator_pb2 as pb
from specsplit.v1 import coordinator_pb2_grpc


class Toy(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers unary calls empty and streams two replies, then does what it is told."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self._then = then

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:  # noqa: N802
        self._then()
        return pb.GetModelInfoResponse()

    async def GetCluster(self, request: pb.GetClusterRequest, context: Context) -> pb.GetClusterResponse:  # noqa: N802
        return pb.GetClusterResponse()

    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.GetPlanResponse:  # noqa: N802
        return pb.GetPlanResponse()

    async def GetTracing(self, request: pb.GetTracingRequest, context: Context) -> pb.GetTracingResponse:  # noqa: N802
        return pb.GetTracingResponse()

    async def SetPlan(self, request: pb.SetPlanRequest, context: Context) -> pb.SetPlanResponse:  # noqa: N802
        return pb.SetPlanResponse()

    async def SetTracing(self, request: pb.SetTracingRequest, context: Context) -> pb.SetTracingResponse:  # noqa: N802
        return pb.SetTracingResponse()

    UpdateWeights = coordinator_pb2_grpc.CoordinatorServiceServicer.UpdateWeights

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        yield pb.GenerateResponse()
        yield pb.GenerateResponse()
        self._then()


def make_server(**settings: object) -> Server:
    values = {"model": Path("unused"), "listen": "127.0.0.1:0", **settings}
    return Server(
        CoordinatorSettings.load(**values), "coordinator", services=[COORDINATOR_SERVICE], session_methods=["Generate"]
    )


@asynccontextmanager
async def serving(
    then: Callable[[], None] = lambda: None, **settings: object
) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    server = make_server(**settings)
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(Toy(then), server.grpc)
    address = await server.start()
    server.ready()
    try:
        async with dial(address) as channel:
            yield server, channel
    finally:
        await server.stop()


async def get_model_info(channel: grpc.aio.Channel) -> None:
    await coordinator_pb2_grpc.CoordinatorServiceStub(channel).GetModelInfo(pb.GetModelInfoRequest())


async def get_cluster(channel: grpc.aio.Channel, **how: Any) -> None:
    await coordinator_pb2_grpc.CoordinatorServiceStub(channel).GetCluster(pb.GetClusterRequest(), **how)


async def generate(channel: grpc.aio.Channel, text: str = "") -> int:
    replies = coordinator_pb2_grpc.CoordinatorServiceStub(channel).Generate(pb.GenerateRequest(text=text))
    return len([reply async for reply in replies])

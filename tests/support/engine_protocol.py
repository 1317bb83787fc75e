"""A gateway as a service sees one: requests of the engine protocol, and what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from specsplit.errors import SpecsplitError
from specsplit.rpc import dial, from_rpc_error
from specsplit.settings import TransportSettings


@asynccontextmanager
async def gateway(address: str, token: Path | None = None) -> AsyncIterator[Any]:
    """The stub of a gateway before the service at this address."""
    async with dial(address, TransportSettings(token_file=token)) as channel:
        yield VllmEngineStub(channel)


def request(
    tokens: tuple[int, ...] = (5, 6, 7), *, text: str = "", stream: bool = False, **sampling: Any
) -> pb.GenerateRequest:
    """A request for these tokens, or for this text; greedy unless it says otherwise."""
    tokenized = None if text else pb.TokenizedInput(input_ids=tokens)
    params = pb.SamplingParams(**{"temperature": 0.0, **sampling})
    return pb.GenerateRequest(
        request_id="of the gateway", tokenized=tokenized, text=text or None, stream=stream, sampling_params=params
    )


async def answer(
    stub: Any, asked: pb.GenerateRequest
) -> tuple[list[pb.GenerateStreamChunk], list[pb.GenerateComplete]]:
    """The chunks, and what completed each choice."""
    chunks, completes = list[pb.GenerateStreamChunk](), list[pb.GenerateComplete]()
    async for response in stub.Generate(asked, timeout=60):
        if response.WhichOneof("response") == "chunk":
            chunks.append(response.chunk)
        else:
            completes.append(response.complete)
    return chunks, completes


async def failure(call: Any) -> SpecsplitError:
    """What a call ends with, whatever it answers before."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (read_all(call) if isinstance(call, grpc.aio.UnaryStreamCall) else call)
    return from_rpc_error(caught.value)


async def read_all(call: Any) -> None:
    """Read a stream to its end."""
    while await call.read():  # the end of a stream is falsy
        pass

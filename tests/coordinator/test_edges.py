"""What one caller or one member cannot do to the others, over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import Register
from specsplit.requests import ChatMessage, ChatPrompt, GenerateRequest
from specsplit.rpc import from_rpc_error
from specsplit.v1 import cluster_pb2_grpc
from specsplit.values import DrafterInfo, DrafterKind, ModelInfo
from specsplit.wire.cluster import ReportMessage, report_to_wire
from tests.coordinator.conftest import CONTEXT, Cluster, Script
from tests.support.garbage import garbling


@asynccontextmanager
async def channel_to(cluster: Cluster) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        yield channel


async def test_a_conversation_of_very_many_messages_is_refused_before_it_is_parsed(cluster: Cluster) -> None:
    chat = b"\x0a\x00" * 2**20  # empty messages
    request = b"\x1a\x80\x80\x80\x01" + chat
    async with channel_to(cluster) as channel:
        call = channel.unary_stream("/specsplit.v1.CoordinatorService/Generate")(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequest)
    assert str(error) == "chat.messages: has more than 4,096 entries, expected at most 4,096"


async def test_a_role_of_a_conversation_is_short(cluster: Cluster) -> None:
    request = GenerateRequest(ChatPrompt((ChatMessage("user", "a"), ChatMessage("u" * 65, "a"))))
    with pytest.raises(InvalidRequest) as caught:
        async for _ in cluster.client.send(request):
            pass
    assert str(caught.value) == "chat.messages[1].role: has 65 characters, expected at most 64"


async def test_a_member_with_a_huge_name_of_a_model_does_not_join_and_the_cluster_can_be_asked(
    cluster: Cluster,
) -> None:
    register = Register("d1", "127.0.0.1:9", DrafterInfo(DrafterKind.NGRAM, "m", None, CONTEXT), 4)
    huge = report_to_wire(register)
    huge.register.drafter.model = "m" * 10 * 2**20

    async def reports() -> AsyncIterator[ReportMessage]:
        yield huge

    async with channel_to(cluster) as channel:
        call = cluster_pb2_grpc.ClusterServiceStub(channel).Join(reports())
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"register\.drafter\.model: has .* characters, expected at most 256"
        ):
            await call.read()
    assert (await cluster.client.cluster()).members == ()


async def test_a_sentence_with_a_callers_long_text_arrives_with_its_own_status(
    cluster: Cluster, say: Callable[..., Script]
) -> None:
    await cluster.add_verifier(say([5]))
    with pytest.raises(InvalidRequest, match="drafter: "):
        await cluster.client.generate("a", drafter="é" * 5_000)
    with pytest.raises(InvalidRequest, match=r"chat\.messages"):
        async for _ in cluster.client.send(GenerateRequest(ChatPrompt((ChatMessage("語" * 65, "a"),)))):
            pass


async def test_a_verifier_that_answers_with_what_is_no_message_fails_the_request_with_a_clear_sentence(
    cluster: Cluster,
) -> None:
    async with garbling() as address:
        await cluster.join("v1", address, ModelInfo("toy", cluster.tokenizer.vocabulary, CONTEXT, (0,)))
        with pytest.raises(Unavailable, match="the peer sent what is not a DecodeSessionsResponse"):
            await cluster.client.generate("a")

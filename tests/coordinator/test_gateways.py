"""What a gateway is answered in vLLM's engine protocol, over real gRPC, with verifiers that follow a script."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specsplit.cli.tokens import write
from specsplit.errors import Cancelled, Exhausted, InvalidRequest, SpecsplitError, Unavailable
from specsplit.identity import CallerRole
from specsplit.observe.span_table import ENGINE_CALL, problems_of, row
from specsplit.rpc import Coordinators, Phase, dial, wait_until_serving
from specsplit.rpc.names import VLLM_ENGINE_SERVICE
from specsplit.sessions import DecodeEvent, DecodeRequest, Finished, Tokens
from specsplit.settings import TransportSettings
from specsplit.values import FinishReason, Load, ModelInfo, SpeculationStatistics, TokenLogprob, Usage
from specsplit.vllm_engine.tokenizer_archive import archive_of
from tests.coordinator.conftest import CONTEXT, POCKET
from tests.support.engine_protocol import answer, failure, request
from tests.support.engine_protocol import gateway as gateway_of
from tests.support.eventually import eventually
from tests.support.otlp import receiving

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]


def gateway(cluster: Cluster, token: Path | None = None) -> AbstractAsyncContextManager[Any]:
    """The stub of a gateway."""
    return gateway_of(cluster.address, token)


async def test_a_request_is_decoded_as_one_of_our_own_and_answered_at_its_end(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((8, 9), (10,)))
    async with gateway(cluster) as stub:
        chunks, (complete,) = await answer(stub, request(max_tokens=40, top_k=3, seed=9, ignore_eos=True))
    assert chunks == []
    assert complete == pb.GenerateComplete(
        output_ids=[8, 9, 10], finish_reason="stop", prompt_tokens=3, completion_tokens=3, cached_tokens=1,
        spec_accepted_tokens=1, spec_draft_tokens=8,
    )  # fmt: skip
    (asked,) = verifier.asked
    assert (asked.request_id, tuple(asked.tokens)) == ("of the gateway", (5, 6, 7))
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.seed) == (0.0, 3, 9)
    assert (asked.stopping.max_tokens, asked.stopping.ignore_eos) == (40, True)


async def test_a_streamed_request_of_several_choices_tells_each_by_its_index(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((8, 9), (10,), reason=FinishReason.LENGTH, stop_token=None))
    async with gateway(cluster) as stub:
        chunks, completes = await answer(stub, request(stream=True, n=3, temperature=0.7, seed=5))
    for index in range(3):
        mine = [chunk for chunk in chunks if chunk.index == index]
        assert [token for chunk in mine for token in chunk.token_ids] == [8, 9, 10]
        assert {chunk.prompt_tokens for chunk in mine} == {3}
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    assert all(not complete.output_ids and complete.completion_tokens == 3 for complete in completes)
    assert {complete.finish_reason for complete in completes} == {"length"}
    assert verifier.asked[0].sampling.temperature == 0.7
    assert len({asked.sampling.seed for asked in verifier.asked}) == 3, "each choice has a seed of its own"


async def test_a_stop_string_ends_the_answer_with_the_token_that_completed_it(cluster: Cluster, say: Say) -> None:
    out = cluster.tokens("x = 1\n\ndef f():\n    pass\n")
    verifier = await cluster.add_verifier(say(out[:4], out[4:], then_wait=True))
    async with gateway(cluster) as stub:
        _, (complete,) = await answer(stub, request(stop=["\n\ndef"]))
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", "\n\ndef")
    assert cluster.tokenizer.decode(list(complete.output_ids)).endswith("\n\ndef")
    await eventually(lambda: verifier.open == 0)


async def test_log_probabilities_come_with_their_tokens(cluster: Cluster) -> None:
    told = TokenLogprob(8, -0.5, (TokenLogprob(9, -0.25), TokenLogprob(8, -0.5)))

    async def script(asked: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        yield Tokens((8,), 0, SpeculationStatistics(1), logprobs=(told,))
        yield Finished(FinishReason.LENGTH, None, Usage(3, 1), SpeculationStatistics(1))

    await cluster.add_verifier(script)
    async with gateway(cluster) as stub:
        (chunk,), _ = await answer(stub, request(stream=True, logprobs=2))
    assert chunk.output_logprobs == pb.OutputLogProbs(
        token_ids=[8], token_logprobs=[-0.5], top_logprobs=[pb.TopLogProbs(token_ids=[9, 8], values=[-0.25, -0.5])]
    )


async def test_what_is_refused_is_refused_as_anywhere_and_the_request_log_hears_of_it(
    cluster: Cluster, say: Say
) -> None:
    refused: list[SpecsplitError] = []
    cluster.coordinator.requests.on_refused.append(refused.append)
    await cluster.add_verifier(say((5,)))
    async with gateway(cluster) as stub:
        error = await failure(stub.Generate(request(top_p=2.0)))
        assert isinstance(error, InvalidRequest) and error.field == "top_p"
        error = await failure(stub.Generate(request(tokens=(5, 99_999))))
        assert isinstance(error, InvalidRequest) and error.field == "tokens.token_ids[1]"
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"sampling_params\.truncate_prompt_tokens: is not supported"
        ) as caught:
            await answer(stub, request(truncate_prompt_tokens=1))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [str(each).split(":")[0] for each in refused] == ["top_p", "sampling_params.truncate_prompt_tokens"]


@pytest.mark.parametrize("name", ["Embed", "SubscribeKvEvents"])
async def test_calls_that_are_not_served_say_so(cluster: Cluster, name: str) -> None:
    message = {"Embed": pb.EmbedRequest(), "SubscribeKvEvents": common_pb2.SubscribeKvEventsRequest()}[name]
    async with gateway(cluster) as stub:
        call = getattr(stub, name)(message, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError, match=f"{name}: is not supported") as caught:
            await (call.read() if isinstance(call, grpc.aio.UnaryStreamCall) else call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_what_operators_ask_is_refused_without_a_verifier_and_by_one_that_does_not_know_it(
    cluster: Cluster, say: Say
) -> None:
    asked: dict[str, Any] = {
        "FlushCache": common_pb2.FlushCacheRequest(), "StartProfile": common_pb2.StartProfileRequest(),
        "StopProfile": common_pb2.StopProfileRequest(),
    }  # fmt: skip
    async with gateway(cluster) as stub:
        for name, message in asked.items():
            assert isinstance(await failure(getattr(stub, name)(message)), Unavailable)
        await cluster.add_verifier(say((8,)))
        for name, message in asked.items():
            with pytest.raises(grpc.aio.AioRpcError, match=r"does not know the call|is a call to") as caught:
                await getattr(stub, name)(message)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        for wrong, field in (({"timeout_s": -1.0}, "timeout_s"), ({"timeout_s": float("nan")}, "timeout_s")):
            error = await failure(stub.FlushCache(common_pb2.FlushCacheRequest(**wrong)))
            assert isinstance(error, InvalidRequest) and error.field == field


async def test_what_operators_ask_while_every_verifier_is_away_is_refused(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((8,)))
    cluster.joined["v1"][1].cancel()
    await eventually(lambda: cluster.coordinator.registry.awaited)
    async with gateway(cluster) as stub:
        error = await failure(stub.FlushCache(common_pb2.FlushCacheRequest()))
    assert isinstance(error, Unavailable) and "every verifier of the cluster is away" in str(error)


async def test_a_server_that_is_no_verifier_is_named_to_the_operator(cluster: Cluster) -> None:
    class Stranger(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            async def refuse(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, "a cat is here")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.aio.server(handlers=[Stranger()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    cluster.stack.push_async_callback(server.stop, None)
    await cluster.join("v1", address, ModelInfo("toy", cluster.tokenizer.vocabulary, CONTEXT, (0,)), 4)
    async with gateway(cluster) as stub:
        error = await failure(stub.FlushCache(common_pb2.FlushCacheRequest()))
    assert isinstance(error, Unavailable) and "does not answer as a verifier does: ALREADY_EXISTS" in str(error)


async def test_an_aborted_request_ends_and_others_go_on(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((8,), then_wait=True))
    async with gateway(cluster) as stub:
        asked, other = request(stream=True), request(stream=True)
        other.request_id = "another"
        calls = [stub.Generate(each) for each in (asked, other)]
        for call in calls:
            assert list((await call.read()).chunk.token_ids) == [8]
        await stub.Abort(pb.AbortRequest(request_ids=["of the gateway", "never there", ""]))
        error = await failure(calls[0])
        assert isinstance(error, Cancelled) and str(error) == "request 'of the gateway' was aborted"
        await eventually(lambda: verifier.open == 1)
        calls[1].cancel()
    await eventually(lambda: cluster.coordinator.admission.running == 0)


async def test_a_request_that_waits_can_be_aborted(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((8,), then_wait=True), max_sessions=1)
    async with gateway(cluster) as stub:
        first, second = request(stream=True), request(stream=True)
        second.request_id = "waits"
        running, waiting = stub.Generate(first), stub.Generate(second)
        await eventually(lambda: cluster.coordinator.admission.queued == 1)
        await stub.Abort(pb.AbortRequest(request_ids=["waits"]))
        assert isinstance(await failure(waiting), Cancelled)
        assert cluster.coordinator.admission.queued == 0
        running.cancel()


async def test_nobody_aborts_the_request_of_another_client(
    start_cluster: StartCluster, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, member = CallerRole.CLIENT, CallerRole.MEMBER
    write(tmp_path, {"alice": client, "mallory": client, "member": member})
    as_member = TransportSettings(token_file=tmp_path / "members/member.token")
    monkeypatch.setattr("tests.coordinator.conftest.Coordinators", partial(Coordinators, settings=as_member))
    cluster = await start_cluster(tokens_file=tmp_path / "members/tokens.toml")
    verifier = await cluster.add_verifier(say((8,), then_wait=True))
    tokens = (tmp_path / "clients" / f"{name}.token" for name in ("alice", "mallory"))
    async with gateway(cluster, next(tokens)) as alice, gateway(cluster, next(tokens)) as mallory:
        call = alice.Generate(request(stream=True))
        await eventually(lambda: verifier.open == 1)
        abort = pb.AbortRequest(request_ids=["of the gateway"])
        await mallory.Abort(abort)
        assert list((await call.read()).chunk.token_ids) == [8]
        assert cluster.coordinator.admission.running == 1
        await alice.Abort(abort)
        assert isinstance(await failure(call), Cancelled)


async def test_requests_of_a_gateway_count_for_the_quotas_of_its_name(start_cluster: StartCluster, say: Say) -> None:
    cluster = await start_cluster(client_max_requests=1)
    verifier = await cluster.add_verifier(say((8,), then_wait=True))
    async with gateway(cluster) as stub:
        running = stub.Generate(request(stream=True))
        await eventually(lambda: verifier.open == 1)
        assert isinstance(await failure(stub.Generate(request())), Exhausted)
        running.cancel()


async def test_a_coordinator_without_a_verifier_is_unavailable_and_says_why(cluster: Cluster, say: Say) -> None:
    """It may not answer that it is unhealthy: a gateway that gets an answer asks for the model once, and never again."""
    async with gateway(cluster) as stub:
        for call in (stub.HealthCheck(pb.HealthCheckRequest()), stub.GetModelInfo(pb.GetModelInfoRequest())):
            refused = await failure(call)
            assert isinstance(refused, Unavailable) and "no verifier has joined the cluster" in str(refused)
        await cluster.add_verifier(say((8,)))
        assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy


async def test_a_coordinator_that_drains_is_not_healthy_and_takes_no_requests(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((8,), then_wait=True))
    async with gateway(cluster) as stub:
        running = stub.Generate(request(stream=True))
        await eventually(lambda: verifier.open == 1)
        leaving = asyncio.create_task(cluster.coordinator.service.serve(signals=False))
        cluster.coordinator.service.leave()
        await eventually(lambda: cluster.coordinator.service.server.phase is Phase.DRAINING)
        health = await stub.HealthCheck(pb.HealthCheckRequest())
        assert not health.healthy and "draining" in health.message
        assert isinstance(await failure(stub.Generate(request())), Unavailable)
        running.cancel()
        assert await asyncio.wait_for(leaving, 20) == 0


async def test_the_engine_is_a_service_of_the_health_protocol(cluster: Cluster) -> None:
    async with dial(cluster.address) as channel:
        await wait_until_serving(channel, 5, VLLM_ENGINE_SERVICE)


async def test_the_model_the_server_and_their_load_are_told_with_true_numbers(cluster: Cluster, say: Say) -> None:
    load = Load(sessions=1, free_pages=6, total_pages=8, page_size=16)
    verifier = await cluster.add_verifier(say((8,), then_wait=True), max_sessions=1, load=lambda: load)
    async with gateway(cluster) as stub:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        calls = [stub.Generate(request(stream=True)) for _ in range(2)]
        await eventually(lambda: verifier.open == 1 and cluster.coordinator.admission.queued == 1)
        await eventually(lambda: cluster.coordinator.registry.verifiers[0].load == load)
        server = await stub.GetServerInfo(pb.GetServerInfoRequest())
        loads = await stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
        none = await stub.GetLoads(pb.GetLoadsRequest(dp_rank=3))
        for call in calls:
            call.cancel()
    size = cluster.tokenizer.vocabulary.size
    assert (info.served_model_name, info.max_context_length, info.vocab_size) == ("toy", CONTEXT, size)
    assert (info.model_type, list(info.eos_token_ids)) == ("llama", [0])
    assert info.model_path == info.tokenizer_path == str(POCKET.resolve())
    assert (server.active_requests, server.max_num_seqs, server.data_parallel_size) == (2, 1, 1)
    assert server.uptime_seconds > 0
    (told,) = loads.loads
    assert (told.num_running_reqs, told.num_waiting_reqs, told.max_running_requests) == (1, 1, 1)
    assert (told.num_used_tokens, told.max_total_num_tokens, told.token_usage) == (32, 128, 0.25)
    assert (loads.dp_rank_count, none.dp_rank_count, len(none.loads)) == (1, 0, 0)


async def test_the_tokenizer_comes_whole_with_its_digest(cluster: Cluster) -> None:
    async with gateway(cluster) as stub:
        chunks = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    data = b"".join(chunk.data for chunk in chunks)
    assert data == archive_of(POCKET).data
    assert (
        [chunk.sha256 for chunk in chunks if chunk.sha256] == [chunks[-1].sha256] == [hashlib.sha256(data).hexdigest()]
    )


async def test_a_request_of_a_gateway_is_a_span_below_the_gateways_own(start_cluster: StartCluster, say: Say) -> None:
    with receiving() as receiver:
        cluster = await start_cluster(trace_endpoint=receiver.address)
        await cluster.add_verifier(say((8,)))
        async with gateway(cluster) as stub:
            async for _ in stub.Generate(request(), metadata=(("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),)):
                pass
        await cluster.coordinator.stop()
        spans = {f"{span.kind} {span.name}": span for span in receiver.spans}
    served, whole = spans[f"server {ENGINE_CALL}"], spans["internal generate"]
    assert (served.trace_id, served.parent_id) == ("a" * 32, "b" * 16)
    assert whole.parent_id == served.span_id
    assert problems_of(row("coordinator", ENGINE_CALL, "server"), served.attributes.items()) == []


async def test_the_log_has_a_line_for_a_request_of_a_gateway(
    cluster: Cluster, say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add_verifier(say((8,)))
    with caplog.at_level(logging.INFO):
        async with gateway(cluster) as stub:
            await answer(stub, request())
    assert "request done" in caplog.text


async def test_an_answer_that_comes_whole_may_be_larger_than_what_is_kept_unread(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(max_unread_bytes=2_000)

    async def script(asked: DecodeRequest) -> AsyncIterator[DecodeEvent]:
        for step in range(1, 101):
            yield Tokens((1_000,) * 20, 0, SpeculationStatistics(step))
        yield Finished(FinishReason.LENGTH, None, Usage(3, 2_000), SpeculationStatistics(100))

    await cluster.add_verifier(script)
    async with gateway(cluster) as stub:
        _, completes = await answer(stub, request(n=3, temperature=1.0, seed=1))
    assert [(each.index, len(each.output_ids)) for each in completes] == [(0, 2_000), (1, 2_000), (2, 2_000)]

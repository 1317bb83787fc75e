"""What a gateway is answered by a verifier itself, over real gRPC, by a target whose output can be worked out by hand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specsplit.cli.tokens import write
from specsplit.errors import (
    Cancelled,
    ContextExceeded,
    Exhausted,
    Incompatible,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from specsplit.identity import CallerRole
from specsplit.observe.span_table import ENGINE_CALL, problems_of, row
from specsplit.requests import Delta, GenerateRequest, TextPrompt, TokenPrompt
from specsplit.rpc import VLLM_ENGINE_SERVICE, Server, Service, dial, wait_until_serving
from specsplit.settings import VerifierSettings
from specsplit.vllm_engine.tokenizer_archive import archive_of
from specsplit_verifier.edge.engine import VerifierEngine
from specsplit_verifier.edge.service import Served, service_of
from tests.support.engine_protocol import answer, failure, gateway, request
from tests.support.eventually import eventually
from tests.support.otlp import receiving
from tests.support.pulled import answered
from tests.support.toys import END, VOCAB, letter, random_target
from tests.verifier.conftest import verifier_over

CLIENT, MEMBER, OPERATOR = CallerRole.CLIENT, CallerRole.MEMBER, CallerRole.OPERATOR
SLOW = {"paced_step_base_ms": 20.0, "adaptive": "static"}
"""A step takes long enough for something to happen meanwhile."""


def letters(text: str) -> tuple[int, ...]:
    return tuple(map(letter, text))


def written(tokens: Any) -> str:
    return bytes(tokens).decode()


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Service[Served]]:
    """A verifier with its server."""
    service = service_of(VerifierSettings(model=folder, **{"listen": "127.0.0.1:0", **settings}))
    await service.start()
    running = asyncio.create_task(service.serve(signals=False))
    try:
        yield service
    finally:
        service.leave()
        service.leave()
        assert await asyncio.wait_for(running, 60) == 0


@asynccontextmanager
async def verifier(folder: Path, **settings: Any) -> AsyncIterator[Any]:
    """The stub of a gateway before a verifier of its own."""
    async with serving(folder, **settings) as service, gateway(service.server.bound) as stub:
        yield stub


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target without a tokenizer."""
    return random_target(tmp_path_factory.mktemp("bare"))


async def test_an_answer_comes_whole_and_one_that_is_streamed_in_parts(alphabet: Path) -> None:
    async with verifier(alphabet) as stub:
        chunks, (complete,) = await answer(stub, request(letters("xa"), max_tokens=5))
        assert chunks == []
        assert complete == pb.GenerateComplete(
            output_ids=letters("bcdef"), finish_reason="length", prompt_tokens=2, completion_tokens=5
        )
        chunks, (complete,) = await answer(stub, request(letters("xa"), max_tokens=5, stream=True))
        assert written([token for chunk in chunks for token in chunk.token_ids]) == "bcdef"
        assert {chunk.prompt_tokens for chunk in chunks} == {2}
        assert (list(complete.output_ids), complete.completion_tokens) == ([], 5)


async def test_a_text_is_read_and_stop_strings_are_found_by_the_tokenizer_of_the_target(alphabet: Path) -> None:
    async with verifier(alphabet) as stub:
        _, (complete,) = await answer(stub, request(text="xa", max_tokens=20, stop=["nothing", "efg"]))
        assert written(complete.output_ids) == "bcdefg"
        assert (complete.finish_reason, complete.matched_stop_str) == ("stop", "efg")
        late = request(text="xa", max_tokens=40, stop=["ef"], min_tokens=9)
        _, (complete,) = await answer(stub, late)
        assert written(complete.output_ids) == "bcdefghijklmnopqrstuvwxyzabcdef"


async def test_stop_tokens_and_the_end_of_the_model_end_an_answer(alphabet: Path) -> None:
    async with verifier(alphabet) as stub:
        _, (complete,) = await answer(stub, request(letters("a"), max_tokens=9, stop_token_ids=letters("e")))
        assert (written(complete.output_ids), complete.matched_token_id) == ("bcd", letter("e"))
        _, (complete,) = await answer(stub, request(letters("!"), max_tokens=9))
        assert (list(complete.output_ids), complete.finish_reason) == ([], "stop")
        assert complete.WhichOneof("matched_stop") is None
        _, (complete,) = await answer(stub, request(letters("!"), max_tokens=3, ignore_eos=True))
        assert list(complete.output_ids) == [END, *letters("ab")]


async def test_choices_have_seeds_of_their_own_and_come_in_order(bare: Path) -> None:
    async with verifier(bare) as stub:
        sampling: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 7, "frequency_penalty": 0.5}
        _, completes = await answer(stub, request((1, 2), n=3, **sampling))
        assert [complete.index for complete in completes] == [0, 1, 2]
        outputs = [tuple(complete.output_ids) for complete in completes]
        assert len(set(outputs)) == 3
        _, (alone,) = await answer(stub, request((1, 2), **sampling))
        assert tuple(alone.output_ids) == outputs[0]
        chunks, _ = await answer(stub, request((1, 2), n=3, stream=True, **sampling))
        for index in range(3):
            tokens = [token for chunk in chunks if chunk.index == index for token in chunk.token_ids]
            assert tuple(tokens) == outputs[index]


async def test_log_probabilities_and_cached_tokens_are_told(alphabet: Path) -> None:
    prompt = letters("abcdefghijklmnop" * 2 + "a")
    async with verifier(alphabet) as stub:
        _, (first,) = await answer(stub, request(prompt, max_tokens=2, logprobs=1))
        _, (second,) = await answer(stub, request(prompt, max_tokens=2))
    told = first.output_logprobs
    assert list(told.token_ids) == [*letters("bc")]
    assert [list(top.token_ids) for top in told.top_logprobs] == [[letter("b")], [letter("c")]]
    assert all(logprob < 0 for logprob in told.token_logprobs)
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)


async def test_what_is_wrong_is_refused_as_a_coordinator_refuses_it(alphabet: Path) -> None:
    async with verifier(alphabet, max_context=64) as stub:
        for asked, field in (
            (request((VOCAB,)), "tokens.token_ids[0]"),
            (request((1,), top_p=2.0), "top_p"),
            (request((1,), stop_token_ids=[VOCAB]), "stopping.stop_token_ids[0]"),
            (request((1,), logit_bias={VOCAB: 1.0}), "sampling.logit_bias"),
            (request((1,), stop=[""]), "stop"),
            (request((1,), seed=-1), "sampling_params.seed"),
        ):
            error = await failure(stub.Generate(asked))
            assert isinstance(error, InvalidRequest) and error.field.startswith(field), error
        for asked in (request((1,) * 64), request((1,), max_tokens=64), request(text="a" * 600)):
            assert isinstance(await failure(stub.Generate(asked)), ContextExceeded)


async def test_without_a_tokenizer_tokens_are_served_and_text_is_refused_by_the_name_of_the_file(bare: Path) -> None:
    async with verifier(bare) as stub:
        _, (complete,) = await answer(stub, request((1, 2), max_tokens=3, ignore_eos=True))
        assert len(complete.output_ids) == 3
        for asked in (request(text="a", max_tokens=3), request((1, 2), stop=["a"])):
            error = await failure(stub.Generate(asked))
            assert isinstance(error, Incompatible) and "tokenizer.json" in str(error)


async def test_a_request_is_aborted_by_its_id_and_others_go_on(alphabet: Path) -> None:
    async with verifier(alphabet, **SLOW) as stub:
        asked, other = (request(letters("a"), max_tokens=400, stream=True) for _ in range(2))
        other.request_id = "another"
        calls = [stub.Generate(each) for each in (asked, other)]
        for call in calls:
            assert (await call.read()).chunk.token_ids
        await stub.Abort(pb.AbortRequest(request_ids=["of the gateway"]))
        error = await failure(calls[0])
        assert isinstance(error, Cancelled) and str(error) == "request 'of the gateway' was aborted"
        assert (await calls[1].read()).chunk.token_ids
        calls[1].cancel()
        await eventually_no_load(stub)


async def eventually_no_load(stub: Any) -> None:
    """Return once the verifier has no request."""
    async with asyncio.timeout(60):
        while (await stub.GetServerInfo(pb.GetServerInfoRequest())).active_requests:
            await asyncio.sleep(0.01)


async def test_the_load_is_that_of_its_sessions_and_its_kv(alphabet: Path) -> None:
    async with verifier(alphabet, max_sessions=1, kv_tokens=1024, **SLOW) as stub:
        asked = request(letters("a" * 20), max_tokens=400, stream=True)
        calls = [stub.Generate(asked)]
        await calls[0].read()  # the first runs, so the second waits
        calls.append(stub.Generate(asked))
        async with asyncio.timeout(60):
            while True:
                (told,) = (await stub.GetLoads(pb.GetLoadsRequest(include=["core"]))).loads
                if told.num_waiting_reqs:
                    break
                await asyncio.sleep(0.01)
        server = await stub.GetServerInfo(pb.GetServerInfoRequest())
        for call in calls:
            call.cancel()
        await eventually_no_load(stub)
        (idle,) = (await stub.GetLoads(pb.GetLoadsRequest())).loads
    assert (server.active_requests, server.max_num_seqs, server.data_parallel_size) == (2, 1, 1)
    assert (told.num_running_reqs, told.num_waiting_reqs, told.max_running_requests) == (1, 1, 1)
    assert told.max_total_num_tokens == 1024 and 20 <= told.num_used_tokens <= 1024 and told.num_used_tokens % 16 == 0
    assert (idle.num_running_reqs, idle.num_used_tokens) == (0, 0)


async def test_more_choices_than_there_are_places_for_are_refused_together(alphabet: Path) -> None:
    async with verifier(alphabet, max_sessions=2, **SLOW) as stub:
        error = await failure(stub.Generate(request(letters("a"), n=6, max_tokens=50, temperature=1.0, seed=1)))
        assert isinstance(error, Exhausted)
        await eventually_no_load(stub)


async def test_prompts_that_are_read_at_once_are_bounded(alphabet: Path) -> None:
    """The first one waits for the tokenizer to be loaded."""
    settings = VerifierSettings(model=alphabet, max_sessions=1)
    server = Server(settings, "verifier", services=())
    engine = VerifierEngine(settings, server)
    async with verifier_over(alphabet) as engine.verifier:
        asked = GenerateRequest(TextPrompt("a"))
        first, second = (answered(engine.generate, asked, lambda: None, "") for _ in range(2))
        reading = asyncio.create_task(anext(first))
        for _ in range(3):  # until it reads
            await asyncio.sleep(0)
        with pytest.raises(Exhausted, match="1 prompts are being read already"):
            await anext(second)
        tokens = answered(engine.generate, GenerateRequest(TokenPrompt(letters("a"))), lambda: None, "")
        for (first_delta,) in (await anext(tokens), await reading):
            assert isinstance(first_delta, Delta) and first_delta.tokens[:1] == letters("b")
        for events in (first, tokens):
            await events.aclose()
        engine.close()
    await server.stop()


async def test_the_model_its_config_and_its_tokenizer_are_told(alphabet: Path) -> None:
    async with verifier(alphabet) as stub:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        chunks = [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
        assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    assert (info.served_model_name, info.model_path) == (alphabet.name, str(alphabet))
    assert (info.vocab_size, info.max_context_length, list(info.eos_token_ids)) == (VOCAB, 512, [END])
    assert (info.model_type, list(info.architectures)) == ("llama", ["LlamaForCausalLM"])
    data = b"".join(chunk.data for chunk in chunks)
    assert data == archive_of(alphabet).data and chunks[-1].sha256 == hashlib.sha256(data).hexdigest()


async def test_a_verifier_that_drains_finishes_what_it_has_and_takes_no_more(alphabet: Path) -> None:
    async with serving(alphabet, **SLOW) as service, gateway(service.server.bound) as stub:
        call = stub.Generate(request(letters("a"), max_tokens=60, stream=True))
        tokens = [*(await call.read()).chunk.token_ids]
        service.leave()
        async with asyncio.timeout(60):
            while (health := await stub.HealthCheck(pb.HealthCheckRequest())).healthy:
                await asyncio.sleep(0.01)
        assert health.message == "the verifier is draining and takes no new requests"
        assert isinstance(await failure(stub.Generate(request(letters("a")))), Unavailable)
        while isinstance(response := await call.read(), pb.GenerateResponse):
            tokens += response.chunk.token_ids
        assert len(tokens) == 60


async def test_an_answer_that_nobody_reads_is_bounded_in_bytes(alphabet: Path) -> None:
    async with serving(alphabet, max_unread_bytes=1024) as service:
        options = [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
        from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

        async with grpc.aio.insecure_channel(service.server.bound, options=options) as channel:
            call: Any = VllmEngineStub(channel).Generate(
                request(letters("a"), n=8, stream=True, max_tokens=500, temperature=1.0, seed=1, logprobs=20)
            )
            await call.read()
            async with gateway(service.server.bound) as stub:
                await eventually_no_load(stub)
            error = await failure(call)
    assert isinstance(error, Exhausted) and "bytes of it unread; at most 1,024 are kept" in str(error)


async def test_where_callers_are_asked_who_they_are_members_alone_send_requests_past_the_coordinator(
    alphabet: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"alice": CLIENT, "member": MEMBER, "operator": OPERATOR})
    alice, operator = tmp_path / "clients/alice.token", tmp_path / "operators/operator.token"
    async with serving(alphabet, tokens_file=tmp_path / "members/tokens.toml", anonymous_clients=True) as service:
        address = service.server.bound
        async with gateway(address, tmp_path / "members/member.token") as stub:
            _, (complete,) = await answer(stub, request(letters("a"), max_tokens=2))
            assert written(complete.output_ids) == "bc"
        for token in (None, alice, operator):
            async with gateway(address, token) as stub:
                error = await failure(stub.Generate(request(letters("a"))))
                assert isinstance(error, PermissionDenied | Unauthenticated)
                assert "Generate needs the role member" in str(error)
        async with gateway(address, operator) as stub:
            assert (await stub.GetLoads(pb.GetLoadsRequest())).loads


async def test_a_request_is_a_span_with_those_of_its_session_below(alphabet: Path) -> None:
    with receiving() as receiver:
        async with verifier(alphabet, trace_endpoint=receiver.address) as stub:
            asked = request(letters("abc"), max_tokens=3)
            async for _ in stub.Generate(asked, metadata=(("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),)):
                pass
        spans = {f"{span.kind} {span.name}": span for span in receiver.spans}
    served = spans[f"server {ENGINE_CALL}"]
    assert (served.trace_id, served.parent_id) == ("a" * 32, "b" * 16)
    assert problems_of(row("verifier", ENGINE_CALL, "server"), served.attributes.items()) == []
    session = spans["internal session"]
    assert session.parent_id == served.span_id
    for name in ("prefill", "decode"):
        assert spans[f"internal {name}"].parent_id == session.span_id


async def test_the_engine_is_a_service_of_the_health_protocol(alphabet: Path) -> None:
    async with serving(alphabet) as service, dial(service.server.bound) as channel:
        await wait_until_serving(channel, 60, VLLM_ENGINE_SERVICE)


async def test_callers_who_leave_end_their_sessions(alphabet: Path) -> None:
    async with verifier(alphabet, **SLOW) as stub:
        call = stub.Generate(request(letters("a"), n=3, max_tokens=400, stream=True, temperature=1.0, seed=1))
        await call.read()
        call.cancel()
        await eventually_no_load(stub)
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await eventually(call.done)

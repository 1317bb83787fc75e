"""Whatever bytes a verifier is sent, it answers with a status of the catalogue, and goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from specsplit.rpc import VERIFIER_SERVICE, VLLM_ENGINE_SERVICE, dial, wait_until_serving
from specsplit.sessions import Begin, DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import Endpoint, PlanChanges, Sampling, Stopping
from specsplit.wire.sessions import begin_event, leave_event, sessions_requests
from specsplit.wire.verifier import decode_events, decode_to_wire
from specsplit.wire.watching import watch_to_wire
from specsplit_verifier.edge.service import service_of
from tests.support.fuzz import HEALTH, REFLECTION, check_no_tracebacks, fuzz, methods_of
from tests.support.toys import letter

REQUEST = DecodeRequest("r1", (letter("a"),), Sampling(), Stopping(3), PlanChanges(), None)
EXAMPLES = (
    *sessions_requests([begin_event(1, Begin(REQUEST)), begin_event(2, Begin(REQUEST, 5.0)), leave_event(1)], 2**20),
    *sessions_requests([begin_event(3, Begin(REQUEST))], 2**20),
    *sessions_requests([leave_event(3)], 2**20),
    decode_to_wire(REQUEST),
    decode_to_wire(DecodeRequest("r2", (letter("x"),) * 20, Sampling(1.0, seed=3), Stopping(2), PlanChanges(), None)),
    decode_to_wire(
        DecodeRequest(
            "r3", (1, 2), Sampling(), Stopping(2), PlanChanges(2), Endpoint("d", "127.0.0.1:1"), scope=b"r" * 16
        )
    ),
    watch_to_wire("r1"),
    engine.GenerateRequest(
        tokenized=engine.TokenizedInput(input_ids=[1, 2]), sampling_params=engine.SamplingParams(max_tokens=2)
    ),
    engine.GenerateRequest(
        text="ab", stream=True, sampling_params=engine.SamplingParams(max_tokens=2, stop=["z"], n=2)
    ),
)


@pytest.mark.slow
async def test_a_verifier_survives_messages_that_nobody_means(alphabet: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = VerifierSettings(model=alphabet, listen="127.0.0.1:0", drafter_connect_timeout_s=0.5)
    service = service_of(settings)
    await service.start()
    server, running = service.server, asyncio.create_task(service.serve(signals=False))
    try:
        async with dial(server.bound) as channel:
            await wait_until_serving(channel, 60)
            await fuzz(
                server.bound,
                methods_of(VERIFIER_SERVICE, VLLM_ENGINE_SERVICE, HEALTH, REFLECTION),
                EXAMPLES,
                rounds=200,
            )
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(decode_to_wire(REQUEST))
            assert len([decode_events(message) async for message in call]) >= 2
        assert not running.done()
    finally:
        server.leave()
        server.leave()
        assert await asyncio.wait_for(running, 20) == 0
    check_no_tracebacks(caplog.records)

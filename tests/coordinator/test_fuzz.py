"""Whatever bytes a coordinator is sent, it answers with a status of the catalogue, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from specsplit.membership import AdaptersReport, Draining, Heartbeat, Register
from specsplit.requests import ChatMessage, ChatPrompt, GenerateRequest, TextPrompt, TokenPrompt
from specsplit.rpc import CLUSTER_SERVICE, COORDINATOR_SERVICE, VLLM_ENGINE_SERVICE
from specsplit.values import (
    Adapter,
    Adaptive,
    Control,
    DrafterInfo,
    DrafterKind,
    DrafterReport,
    Estimate,
    Load,
    Plan,
    PlanChanges,
    SpeculationReport,
    Stopping,
    TraceChanges,
)
from specsplit.wire import cluster as cluster_wire
from specsplit.wire import coordinator as wire
from tests.coordinator.conftest import Cluster, Script
from tests.support.fuzz import HEALTH, REFLECTION, check_no_tracebacks, fuzz, methods_of

PROMPTS = (TextPrompt("def f"), ChatPrompt((ChatMessage("user", "hello"),)), TokenPrompt((5, 6, 7)))
REPORT = SpeculationReport("ema", estimate=Estimate(2.5, 0.02, 1e-4, 120, 100), drafters=(DrafterReport("d1", 1, 9.0),))
GATEWAYS = engine.GenerateRequest(
    request_id="1", tokenized=engine.TokenizedInput(input_ids=[5, 6]), sampling_params=engine.SamplingParams(top_p=0.5)
)
EXAMPLES = (
    *(wire.generate_to_wire(GenerateRequest(each, stopping=Stopping(4), stop=("\n",))) for each in PROMPTS),
    wire.set_plan_to_wire(PlanChanges(num_steps=3), Control(Adaptive.EMA, 8), reset=False),
    wire.set_tracing_to_wire(TraceChanges(level=1, modules=("drafter",)), reset=True),
    cluster_wire.report_to_wire(Register("d9", "127.0.0.1:1", DrafterInfo(DrafterKind.NGRAM, "", None, 64), 4)),
    cluster_wire.report_to_wire(Heartbeat(Load(sessions=1), ("d1",), Plan(), REPORT)),
    cluster_wire.report_to_wire(Draining()),
    cluster_wire.report_to_wire(AdaptersReport((Adapter("sql", "11"),))),
    GATEWAYS,
)


@pytest.mark.slow
async def test_a_coordinator_survives_messages_that_nobody_means(
    cluster: Cluster, say: Callable[..., Script], caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add_verifier(say([5], [6, 7]), max_sessions=64)
    services = (COORDINATOR_SERVICE, CLUSTER_SERVICE, VLLM_ENGINE_SERVICE, HEALTH, REFLECTION)
    await fuzz(cluster.address, methods_of(*services), EXAMPLES, rounds=200)
    options: dict[str, Any] = {"timeout_s": 10}
    assert (await cluster.client.generate("x", **options)).tokens
    check_no_tracebacks(caplog.records)

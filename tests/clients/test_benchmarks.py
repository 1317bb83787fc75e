"""guidellm and aiperf measure a cluster through the gateway: what they report is what they asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsplit.cli.gateway import Gateway
from tests.clients.programs import TOKENIZER, run

pytestmark = pytest.mark.timeout(300)

REQUESTS, INPUT, OUTPUT = 6, 32, 16


def test_guidellm_gets_every_completion_with_the_tokens_that_it_asked_for(gateway: Gateway, tmp_path: Path) -> None:
    run(
        tmp_path,
        "guidellm",
        "run",
        "--disable-console",
        f"--backend=kind=openai_http,target={gateway.url.removesuffix('/v1')},model=target,request_format=/v1/completions",
        "--profile=kind=concurrent,streams=2",
        f"--constraint=kind=max_requests,count={REQUESTS}",
        f"--tokenizer=kind=huggingface_auto,model={TOKENIZER}",
        f"--data=kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}",
        "--output=kind=json,path=report.json",
    )
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    state, metrics = benchmark["scheduler_state"], benchmark["metrics"]
    assert (state["successful_requests"], state["errored_requests"]) == (REQUESTS, 0)
    for counted, expected in (("prompt_token_count", INPUT), ("output_token_count", OUTPUT)):
        found = metrics[counted]["successful"]
        assert (found["min"], found["max"]) == (expected, expected), counted
    assert metrics["time_to_first_token_ms"]["successful"]["min"] > 0


def test_aiperf_gets_every_conversation_streamed_with_the_tokens_that_it_asked_for(
    gateway: Gateway, tmp_path: Path
) -> None:
    """It takes a name on a hub alone for a tokenizer while it is told that there is no network, and a folder otherwise."""
    run(
        tmp_path,
        "aiperf",
        "profile",
        "--model=target",
        f"--url={gateway.url.removesuffix('/v1')}",
        "--endpoint-type=chat",
        "--streaming",
        f"--tokenizer={TOKENIZER}",
        f"--request-count={REQUESTS}",
        "--concurrency=2",
        f"--synthetic-input-tokens-mean={INPUT}",
        f"--output-tokens-mean={OUTPUT}",
        "--extra-inputs=ignore_eos:true",
        "--use-server-token-count",  # a text that is split into tokens again may have others than it was made of
        "--random-seed=1",
        "--ui=none",
        "--artifact-dir=report",
        offline=False,
    )
    report = json.loads((tmp_path / "report" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == REQUESTS
    assert report["error_summary"] == []
    assert (report["output_sequence_length"]["min"], report["output_sequence_length"]["max"]) == (OUTPUT, OUTPUT)
    assert report["time_to_first_token"]["min"] > 0

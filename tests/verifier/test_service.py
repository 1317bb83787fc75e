"""The verifier as a process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specsplit.cli.local import Child
from specsplit.v1 import verifier_pb2, verifier_pb2_grpc
from specsplit.v1.common_pb2 import Stopping


def health(channel: grpc.Channel) -> int:
    request = health_pb2.HealthCheckRequest()
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=5).status  # pyright: ignore[reportAttributeAccessIssue]


def test_health_says_not_serving_until_loaded_and_answers_during_a_forward(alphabet: Path) -> None:
    child = Child("verifier", "verifier", {"model": alphabet, "paced_step_base_ms": 3000}, None)
    try:
        with grpc.insecure_channel(child.wait_listening(60)) as channel:
            assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
            deadline = time.monotonic() + 60
            while health(channel) != health_pb2.HealthCheckResponse.SERVING:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            request = verifier_pb2.DecodeRequest(token_ids=[97], stopping=Stopping(max_tokens=1))
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(request, timeout=30)
            events: list[verifier_pb2.DecodeResponse] = []
            reader = threading.Thread(target=lambda: events.extend(call))
            reader.start()
            time.sleep(0.3)
            assert health(channel) == health_pb2.HealthCheckResponse.SERVING
            assert not events, "answered while the forward was still running"
            reader.join(30)
            assert list(events[0].tokens.token_ids) == [98]
    finally:
        child.terminate()
        assert child.wait(20) == 0


def test_sigterm_while_loading_exits_zero(alphabet: Path) -> None:
    child = Child("verifier", "verifier", {"model": alphabet}, None)
    child.wait_listening(60)
    child.terminate()
    assert child.wait(20) == 0


def test_a_model_that_cannot_be_served_ends_the_process_with_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specsplit", "serve", "verifier", "--model", str(tmp_path / "nowhere")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode in (1, 2)
    assert "nowhere" in run.stderr.splitlines()[-1] and "Traceback" not in run.stderr

"""A drafter in a process of its own, for the benchmarks that drive a verifier directly."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.processes import process, said
from specsplit.clock import SystemClock
from specsplit.settings import DrafterSettings
from specsplit.values import Endpoint
from specsplit_drafter.edge.service import load_proposer, main

START_S = 60.0


@contextlib.contextmanager
def drafter(settings: DrafterSettings) -> Iterator[Endpoint]:
    """A drafter with these settings for the duration of the block, ready to draft."""
    features = load_proposer(settings, SystemClock()).info.features
    with process("benchmarks.drafter_process", json.dumps(settings.resolved())) as started:
        address = said(started).rpartition(" ")[2]
        _wait_until_serving(address)
        yield Endpoint(settings.kind.value, address, features)


def _wait_until_serving(address: str) -> None:
    deadline = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline:
            asked = health_pb2.HealthCheckRequest()
            reply = health.Check(asked, wait_for_ready=True, timeout=START_S)  # pyright: ignore[reportAttributeAccessIssue]
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(0.1)
    raise TimeoutError(f"the drafter at {address} did not get ready in {START_S:.0f} s")


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(DrafterSettings(**json.loads(sys.argv[1]))))

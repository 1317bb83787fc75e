"""A gateway before two verifiers that subscribes to what each has cached, and sends a prompt where its pages are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from specsplit.cli.local import LocalCluster
from tests.clients.programs import POCKET
from tests.support.eventually import eventually
from tests.support.ranks import free_port

PAGE = 16
PROMPTS = ["".join(f"def f{each}{n}(a, b):\n    return a + {n}\n" for n in range(8)) for each in "pqrst"]


class CacheAware:
    """The gateway, at `url`, with its metrics."""

    def __init__(self, port: int, metrics: int) -> None:
        self.url, self._metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"

    def complete(self, prompt: str) -> tuple[int, int]:
        """Tokens of the prompt, and how many of them were cached."""
        body = json.dumps({"model": "target", "prompt": prompt, "max_tokens": 2, "temperature": 0}).encode()
        asked = urllib.request.Request(
            f"{self.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            usage = json.load(answer)["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def sum(self, series: str) -> float:
        """Of all whose name and labels have this pattern."""
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(series, line))

    @property
    def hits(self) -> float:
        """Requests that went where the first of their pages were cached, by what verifiers had told."""
        return self.sum(r'smg_cache_aware_policy_branch_total\{branch="event_hit"\}')

    @property
    def stored(self) -> float:
        """Pages that verifiers have told of since the gateway subscribed."""
        return self.sum(r'smg_kv_event_blocks_total\{.*op="stored"')

    def has_stored(self, pages: float) -> bool:
        return self.stored >= pages

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readiness", timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def cache_aware(verifiers: list[str]) -> Iterator[CacheAware]:
    """Starts it; when it is ready is for the caller to see."""
    port, metrics = free_port(), free_port()
    options = ["--policy=cache_aware", "--host=127.0.0.1", f"--port={port}", "--prometheus-host=127.0.0.1"]
    options += [f"--prometheus-port={metrics}", "--worker-startup-check-interval=1", "--log-level=warn"]
    workers = ["--worker-urls", *(f"grpc://{each}" for each in verifiers)]
    with subprocess.Popen([sys.executable, "-m", "smg.launch_router", *options, *workers]) as process:
        try:
            yield CacheAware(port, metrics)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def verifiers() -> Iterator[LocalCluster]:
    with LocalCluster(POCKET / "target", verifiers=2) as cluster:
        yield cluster


async def test_prompts_go_where_their_pages_are_whether_they_were_cached_before_the_gateway_came_or_through_it(
    verifiers: LocalCluster,
) -> None:
    with verifiers.client() as own:
        for prompt in PROMPTS[:3]:
            own.generate(prompt, max_tokens=2)
    with cache_aware([each.address for each in verifiers.verifiers]) as gateway:
        await eventually(gateway.ready)
        await eventually(lambda: gateway.sum("smg_kv_event_subscriptions_total") == 2)
        await eventually(lambda: gateway.sum(r"smg_kv_index_blocks") > 0)
        for prompt in PROMPTS[:3]:
            tokens, cached = gateway.complete(prompt)
            assert cached >= tokens - 2 * PAGE
        assert gateway.hits == 3
        for prompt in PROMPTS[3:]:
            stored = gateway.stored
            tokens, cached = gateway.complete(prompt)
            assert cached < PAGE
            await eventually(partial(gateway.has_stored, stored + tokens // PAGE))
            tokens, cached = gateway.complete(prompt)
            assert cached >= tokens - 2 * PAGE
        assert gateway.hits == 5
        assert gateway.sum("smg_kv_event_gaps_total") == gateway.sum("smg_kv_event_parentless_stores_total") == 0

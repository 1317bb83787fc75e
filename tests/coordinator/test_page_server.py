"""The page's server over real HTTP: what it serves, what it refuses, and to whom."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from specsplit.build import build
from specsplit.errors import InvalidRequest
from specsplit.membership import GroupRank, Heartbeat, Register, WaveReport
from specsplit.settings import CoordinatorSettings
from specsplit.values import (
    Adapter,
    AdapterLoad,
    Adaptive,
    Control,
    DrafterKind,
    Estimate,
    Load,
    ModelInfo,
    NoDrafts,
    NoDraftsCause,
    PlanChanges,
    SpeculationReport,
)
from specsplit_coordinator.page import server
from tests.support.eventually import eventually

from .conftest import POCKET
from .test_watching import step

if TYPE_CHECKING:
    from .conftest import Cluster, Script, StartCluster

Say = Callable[..., "Script"]


@pytest.fixture
async def cluster(start_cluster: StartCluster) -> Cluster:
    return await start_cluster(web_listen="127.0.0.1:0")


async def ask(cluster: Cluster, head: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request, whose `head` is given without its last empty line."""
    reader, writer = await connect(cluster)
    try:
        writer.write((head + "\r\n\r\n").encode("latin-1"))
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    lines, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = lines.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in headers), body


async def get(cluster: Cluster, path: str, host: str = "localhost") -> tuple[int, dict[str, str], bytes]:
    return await ask(cluster, f"GET {path} HTTP/1.1\r\nHost: {host}")


async def state(cluster: Cluster) -> dict[str, Any]:
    status, headers, body = await get(cluster, "/cluster.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    return json.loads(body)


async def test_the_page_is_one_file_that_asks_nobody_else_for_anything(cluster: Cluster) -> None:
    status, headers, body = await get(cluster, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert int(headers["Content-Length"]) == len(body) < 60_000
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    text = body.decode()
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", text)
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}, (
        "names of a format, not fetched"
    )


async def test_the_cluster_is_told_as_it_is(cluster: Cluster, say: Say) -> None:
    empty = await state(cluster)
    assert (empty["verifiers"], empty["drafters"], empty["requests"]) == ([], [], [])
    report = SpeculationReport("goodput", 32, estimate=Estimate(2.5, 0.02, 1e-4, 120, 100), accept_length=2.4)
    report = replace(report, no_drafts=NoDrafts(NoDraftsCause.LATE))
    await cluster.add_verifier(say((5, 6), (7,)), speculation=lambda: report)
    await cluster.add_drafter(DrafterKind.NGRAM, "d1")
    await cluster.client.generate("x", request_id="mine")
    cluster.coordinator.orders.change_plan(PlanChanges(num_steps=2), Control(Adaptive.GOODPUT))
    (member,) = cluster.coordinator.registry.verifiers
    async with asyncio.timeout(10):
        while member.report.speculation is None:  # until its first report
            await asyncio.sleep(0.01)
    now = await state(cluster)
    (verifier,), (drafter,), (request,) = now["verifiers"], now["drafters"], now["requests"]
    assert (verifier["name"], verifier["model"], verifier["state"]) == ("v1", "toy", "serving")
    assert (drafter["name"], drafter["kind"], drafter["max_sessions"]) == ("d1", "ngram", 4)
    assert (request["id"], request["state"], request["ended"], request["tokens"]) == ("mine", "stop", True, 3)
    assert (request["verifier"], request["drafter"], request["accept_length"]) == ("v1", "d1", 1.5)
    assert now["totals"] == {"requests": 1, "tokens": 3, "steps": 2, "accepted": 1, "failovers": 0, "preemptions": 0}
    assert verifier["group"] is None
    assert (now["build"], verifier["build"], drafter["build"]) == (build(), "", ""), "members that do not tell theirs"
    assert now["plan_changes"] == {"num_steps": 2, "adaptive": "goodput"}
    told = {"adaptive": "goodput", "max_draft_tokens": 32, "accept_length": 2.4, "hit_rate": 0.0}
    assert verifier["speculation"] == told | {
        "estimate": {"rate": 120, "static_rate": 100},
        "no_drafts": NoDrafts(NoDraftsCause.LATE).sentence,
    }


async def test_the_ranks_of_a_group_are_told_with_their_wave_and_what_each_does(cluster: Cluster) -> None:
    registry, model = cluster.coordinator.registry, ModelInfo("toy", cluster.tokenizer.vocabulary, 512)
    first, second = (
        registry.register(Register(f"v{rank}", "127.0.0.1:9", model, 4, group=GroupRank("g", rank, 2)))
        for rank in (0, 1)
    )

    async def ranks() -> list[dict[str, Any]]:
        return [each["group"] for each in (await state(cluster))["verifiers"]]

    group = {"group_id": "g", "size": 2}
    assert await ranks() == [group | {"rank": rank, "wave": 0, "state": ""} for rank in (0, 1)], "nothing was said yet"
    for member in (first, second):
        registry.on_wave_report(member, WaveReport(3, parked=False))
    lease = await cluster.coordinator.admission.acquire()
    busy, idle = ("busy", "idle") if lease.verifier is first else ("idle", "busy")
    assert await ranks() == [
        group | {"rank": 0, "wave": 3, "state": busy},
        group | {"rank": 1, "wave": 3, "state": idle},
    ]
    lease.release()
    registry.on_wave_report(first, WaveReport(3, parked=True))
    assert [rank["state"] for rank in await ranks()] == ["parked", "idle"]


async def test_adapters_of_a_verifier_are_told_with_their_sessions(cluster: Cluster) -> None:
    adapters = (Adapter("french", "ab" * 32, 8), Adapter("sql", "cd" * 32, 16))
    model, registry = (
        ModelInfo("toy", cluster.tokenizer.vocabulary, 512, adapters=adapters),
        cluster.coordinator.registry,
    )
    member = registry.register(Register("v1", "127.0.0.1:9", model, 4))
    registry.on_heartbeat(member, Heartbeat(Load(sessions=3, adapters=(AdapterLoad("sql", 2),))))
    (verifier,) = (await state(cluster))["verifiers"]
    assert verifier["adapters"] == [
        {"name": "french", "digest": "ab" * 32, "rank": 8, "sessions": 0},
        {"name": "sql", "digest": "cd" * 32, "rank": 16, "sessions": 2},
    ]


async def test_a_member_that_went_is_shown_for_a_while_with_the_reason(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5,)))
    registry = cluster.coordinator.registry
    registry.remove(registry.verifiers[0], "it was silent for 3.0 s")
    (verifier,) = (await state(cluster))["verifiers"]
    assert (verifier["state"], verifier["why"]) == ("lost", "it was silent for 3.0 s")
    await cluster.add_verifier(say((5,)))
    (verifier,) = (await state(cluster))["verifiers"]
    assert verifier["state"] == "serving", "it is back under its name"
    registry.drain(registry.verifiers[0])
    registry.remove(registry.verifiers[0], "its stream ended")
    (verifier,) = (await state(cluster))["verifiers"]
    assert verifier["state"] == "left"


@pytest.mark.parametrize(
    ("head", "status", "sentence"),
    [
        ("GET /other HTTP/1.1\r\nHost: localhost", 404, "the page is at /"),
        ("GET /watch/77 HTTP/1.1\r\nHost: localhost", 404, "no request has the number 77"),
        ("GET /watch/x HTTP/1.1\r\nHost: localhost", 404, "no request has the number x"),
        ("POST / HTTP/1.1\r\nHost: localhost", 405, "nothing here but to look at"),
        ("GET / HTTP/1.1\r\nHost: evil.example:80", 403, "open the page as localhost"),
        ("GET / HTTP/1.0", 403, "open the page as localhost"),
        ("GET / HTTP/1.1", 400, "Host"),
        ("hello", 400, "hello"),
    ],
)
async def test_what_it_does_not_do_is_said_in_a_sentence(
    cluster: Cluster, head: str, status: int, sentence: str
) -> None:
    found, headers, body = await ask(cluster, head)
    assert (found, headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
    assert sentence in body.decode()


@pytest.mark.parametrize("path", ["/", "/cluster.json", "/other", "/watch/77"])
async def test_a_head_request_is_answered_as_a_get_without_its_body(cluster: Cluster, path: str) -> None:
    status, headers, body = await ask(cluster, f"HEAD {path} HTTP/1.1\r\nHost: localhost")
    asked, as_get, whole = await get(cluster, path)
    assert (status, body) == (asked, b"") and whole
    varies = {"Date", "Content-Length"} if path == "/cluster.json" else {"Date"}
    assert {k: v for k, v in headers.items() if k not in varies} == {k: v for k, v in as_get.items() if k not in varies}


async def test_a_head_request_of_a_stream_ends_after_the_head(cluster: Cluster, say: Say) -> None:
    await cluster.add_verifier(say((5, 6), (7,)))
    await cluster.client.generate("x")
    status, headers, body = await ask(cluster, "HEAD /watch/1 HTTP/1.1\r\nHost: localhost")
    assert (status, headers["Content-Type"], body) == (200, "text/event-stream", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_are_told_which_there_are(cluster: Cluster, method: str) -> None:
    status, headers, _ = await ask(cluster, f"{method} / HTTP/1.1\r\nHost: localhost")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("host", ["localhost:50080", "127.0.0.1", "[::1]:80"])
async def test_this_machine_may_be_called_by_any_of_its_names(cluster: Cluster, host: str) -> None:
    assert (await get(cluster, "/?from=here", host))[0] == 200


async def connect(cluster: Cluster) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = cluster.coordinator.page.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_head_without_end_is_cut_off(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await connect(cluster)
    writer.write(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert b" 400 Bad Request" in (await reader.read()).partition(b"\r\n")[0]
    writer.close()
    assert (await get(cluster, "/"))[0] == 200
    assert "Error handling request" not in caplog.text, "strangers do not fill the log"


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: local"])
async def test_a_connection_on_which_no_whole_request_comes_is_closed(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await connect(await start_cluster(web_listen="127.0.0.1:0"))
    writer.write(said)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_of_too_many_connections_the_last_are_told_to_close_some(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    idle = [await connect(cluster) for _ in range(2)]
    status, _, body = await get(cluster, "/")
    assert (status, body) == (503, b"2 connections are open; close some pages\n")
    for _, writer in idle:
        writer.close()
    async with asyncio.timeout(10):
        while (await get(cluster, "/"))[0] != 200:
            await asyncio.sleep(0.01)


async def stream(cluster: Cluster, path: str) -> AsyncIterator[dict[str, Any]]:
    """The snapshots of an event stream."""
    reader, writer = await connect(cluster)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head and b"Content-Type: text/event-stream" in head
        while line := await reader.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        writer.close()


async def test_a_running_request_is_watched_as_server_sent_events(
    cluster: Cluster, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "QUIET_S", 0.05)  # lines without meaning in between do no harm
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    verifier.watched = [(step("the", (0, 1, 3)), 0)]
    request = asyncio.create_task(cluster.client.generate("x", timeout_s=30))
    await eventually(lambda: verifier.asked)
    kinds: list[str] = []
    async with asyncio.timeout(20):
        async for snapshot in stream(cluster, "/watch/1"):
            kinds.append(snapshot["kind"])
            if snapshot["kind"] == "step":
                assert (snapshot["verified"], snapshot["accepted"], snapshot["committed"]) == (5, 2, 3)
                assert snapshot["plan"]["num_draft_tokens"] == 16
                request.cancel()
                verifier.ended.set()
    assert (kinds[0], kinds[-1]) == ("step", "end")
    await asyncio.gather(request, return_exceptions=True)


async def test_a_coordinator_that_stops_ends_the_streams(cluster: Cluster, say: Say) -> None:
    verifier = await cluster.add_verifier(say((5,), then_wait=True))
    verifier.watched = [(step("the", (0, 1, 3)), 0)]
    request = asyncio.create_task(cluster.client.generate("x", timeout_s=30))
    await eventually(lambda: verifier.asked)
    async with asyncio.timeout(20):
        async for _ in stream(cluster, "/watch/1"):
            await cluster.coordinator.page.stop()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_there_is_no_page_unless_told_where(start_cluster: StartCluster) -> None:
    assert (await start_cluster()).coordinator.page.address == ""


async def test_an_address_that_is_taken_is_named(cluster: Cluster, start_cluster: StartCluster) -> None:
    with pytest.raises(InvalidRequest, match="web_listen: cannot bind"):
        await start_cluster(web_listen=cluster.coordinator.page.address)


def test_beyond_this_machine_it_must_be_allowed() -> None:
    with pytest.raises(InvalidRequest, match=r"web_listen: .* the page is served without TLS"):
        CoordinatorSettings(model=POCKET, web_listen="0.0.0.0:8080")
    assert CoordinatorSettings(model=POCKET, web_listen="0.0.0.0:8080", insecure=True).web_listen == "0.0.0.0:8080"

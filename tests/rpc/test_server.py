"""The life of a server: loading, serving, draining, gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2

from specsplit import errors
from specsplit.rpc import (
    CLUSTER_SERVICE,
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    VERIFIER_SERVICE,
    VLLM_ENGINE_SERVICE,
    Phase,
    Server,
    dial,
    dial_blocking,
    from_rpc_error,
    wait_until_serving,
)
from specsplit.settings import TransportSettings, VerifierSettings
from specsplit.v1 import cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2
from tests.rpc.toy import generate, get_cluster, get_model_info, make_server, serving
from tests.support.eventually import eventually


async def health_of(channel: grpc.aio.Channel, service: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    reply = await health_pb2_grpc.HealthStub(channel).Check(request)  # pyright: ignore[reportAttributeAccessIssue]
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


async def nothing() -> None:
    pass


async def error_of(call: object) -> errors.SpecsplitError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # pyright: ignore[reportGeneralTypeIssues]
    return from_rpc_error(caught.value)


async def test_a_server_says_where_it_listens_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as (server, _):
        assert capsys.readouterr().out == f"specsplit coordinator listening on {server.bound}\n"
        assert server.address == server.bound
        assert server.bound.startswith("127.0.0.1:")


async def test_a_loading_server_listens_is_not_serving_and_refuses_calls_with_a_reason() -> None:
    server = make_server()
    async with dial(await server.start()) as channel:
        assert await health_of(channel) == "NOT_SERVING"
        refusal = await error_of(get_model_info(channel))
        assert isinstance(refusal, errors.Unavailable)
        assert "still loading" in str(refusal)
    await server.stop()


async def test_a_ready_server_is_serving_under_every_name_it_has() -> None:
    async with serving() as (_, channel):
        assert await health_of(channel) == await health_of(channel, COORDINATOR_SERVICE) == "SERVING"
        unknown = await error_of(health_of(channel, "no.such.Service"))
        assert isinstance(unknown, errors.NotFound)


async def test_a_watcher_sees_every_change_and_then_the_end() -> None:
    server = make_server()
    seen: list[int] = []
    async with dial(await server.start()) as channel:

        async def watch() -> None:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            async for reply in stub.Watch(request):  # pyright: ignore[reportAttributeAccessIssue]
                seen.append(reply.status)
                (server.ready if len(seen) == 1 else server.leave)()

        watching = asyncio.create_task(watch())
        assert await server.run(nothing, signals=False) == 0
        await asyncio.wait({watching})
    assert seen[:2] == [health_pb2.HealthCheckResponse.NOT_SERVING, health_pb2.HealthCheckResponse.SERVING]


async def test_waiting_for_a_server_begins_before_it_listens_and_ends_when_it_serves() -> None:
    first = make_server()
    address = await first.start()
    await first.stop()
    async with dial(address) as channel:
        waiting = asyncio.create_task(wait_until_serving(channel, timeout_s=20))
        await asyncio.sleep(0.1)
        server = make_server(listen=address)
        await server.start()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        server.ready()
        await waiting
        await server.stop()


async def test_waiting_for_a_server_that_never_serves_ends_in_time() -> None:
    server = make_server()
    async with dial(await server.start()) as channel:
        with pytest.raises(errors.DeadlineExceeded, match=r"not serving after 0\.2 s"):
            await wait_until_serving(channel, timeout_s=0.2)
    await server.stop()


async def test_a_draining_server_refuses_sessions_answers_the_rest_and_waits_for_its_own() -> None:
    may_end = asyncio.Event()
    async with serving() as (server, channel):
        running = asyncio.create_task(server.run(may_end_of(may_end), signals=False))
        server.leave()
        await eventually(lambda: server.phase is Phase.DRAINING)
        assert await health_of(channel) == "NOT_SERVING"
        refusal = await error_of(generate(channel))
        assert isinstance(refusal, errors.Unavailable)
        assert "draining" in str(refusal)
        await get_cluster(channel)
        assert not running.done()
        may_end.set()
        assert await running == 0


def may_end_of(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await event.wait()

    return wait


async def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    async with serving(drain_s=0.1) as (server, _):
        server.leave()
        assert await server.run(may_end_of(asyncio.Event()), signals=False) == 0


async def test_a_second_request_to_leave_cuts_the_drain_short() -> None:
    async with serving(drain_s=60) as (server, _):
        server.leave()
        server.leave()
        assert await server.run(may_end_of(asyncio.Event()), signals=False) == 0


async def test_who_is_told_to_drain_twice_and_asked_to_leave_once_still_finishes_its_sessions() -> None:
    may_end = asyncio.Event()
    async with serving() as (server, _):
        server.drain()
        running = asyncio.create_task(server.run(may_end_of(may_end), signals=False))
        await eventually(lambda: server.phase is Phase.DRAINING)
        server.drain()
        server.leave()  # as where the platform ends all ranks of a group, of which one has told the coordinator already
        await asyncio.wait({running}, timeout=0.05)
        assert not running.done()
        may_end.set()
        assert await running == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_begins_the_drain(number: signal.Signals) -> None:
    async with serving() as (server, _):
        running = asyncio.create_task(server.run(nothing))
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), number)
        assert await running == 0


async def test_a_terminal_that_closes_and_sends_its_signal_twice_hurries_nobody() -> None:
    may_end = asyncio.Event()
    async with serving() as (server, _):
        running = asyncio.create_task(server.run(may_end_of(may_end)))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: server.phase is Phase.DRAINING)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait({running}, timeout=0.05)
        assert not running.done()
        may_end.set()
        assert await running == 0


async def test_a_process_that_was_started_to_ignore_a_closing_terminal_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with serving() as (server, _):
            running = asyncio.create_task(server.run(nothing))
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait({running}, timeout=0.05)
            assert not running.done()
            server.leave()
            assert await running == 0
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_reflection_lists_the_services_and_describes_their_files() -> None:
    async with serving() as (_, channel):
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=COORDINATOR_SERVICE),
        ]
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # pyright: ignore[reportArgumentType]
        replies = stub.ServerReflectionInfo(iter(requests))  # pyright: ignore[reportCallIssue]
        listing, files = [reply async for reply in replies]
    names = {service.name for service in listing.list_services_response.service}
    assert names == {COORDINATOR_SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert files.file_descriptor_response.file_descriptor_proto


async def test_a_message_over_the_cap_is_refused_and_the_server_goes_on() -> None:
    async with serving(max_message_bytes=64 * 2**10) as (_, channel):
        assert isinstance(await error_of(generate(channel, "x" * 100_000)), errors.Exhausted)
        assert await generate(channel) == 2


async def test_a_port_in_use_is_one_clear_error() -> None:
    async with serving() as (server, _):
        with pytest.raises(errors.InvalidRequest, match=f"listen: cannot bind {server.bound}"):
            await make_server(listen=server.bound).start()


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n"], ids=["nothing", "half a greeting"])
async def test_who_connects_and_does_not_go_on_is_hung_up_on(said: bytes) -> None:
    async with serving(connect_timeout_s=0.2) as (server, channel), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.bound.split(":"))
        writer.write(said)
        await reader.read()
        writer.close()
        assert await generate(channel) == 2, "who has shaken hands is none of them"


def test_more_silent_connections_than_the_usual_limit_of_a_process_keep_nobody_out() -> None:
    """A process has 1,024 descriptors as a rule, and may have more; here it has 128."""
    command = [sys.executable, "-m", "specsplit", "serve", "coordinator", "--model", "models/pocket/target"]
    limited = [
        "sh",
        "-c",
        'ulimit -S -n 128; exec "$0" "$@"',
        *command,
        "--listen",
        "127.0.0.1:0",
        "--connect-timeout-s",
        "600",
    ]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(limited, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        bound = next(line.split()[-1] for line in process.stdout if "listening on" in line)
        host, port = bound.split(":")
        for _ in range(200):
            stack.enter_context(socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)))
        with dial_blocking(bound) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_services_are_named_as_in_the_protos() -> None:
    files = (cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2)
    declared = {service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()}
    assert declared == {CLUSTER_SERVICE, COORDINATOR_SERVICE, DRAFTER_SERVICE, VERIFIER_SERVICE}
    (engine,) = vllm_engine_pb2.DESCRIPTOR.services_by_name.values()
    assert engine.full_name == VLLM_ENGINE_SERVICE


async def test_others_are_told_the_advertised_address() -> None:
    settings = VerifierSettings(model=Path("unused"), advertise="verifier.example:7")
    server = Server(settings, "verifier", services=[])
    await server.start()
    assert server.address == "verifier.example:7"
    await server.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


async def test_a_server_with_a_certificate_speaks_tls_and_nothing_else(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    async with serving(tls_cert=cert, tls_key=key) as (server, channel_in_the_clear):
        assert isinstance(await error_of(get_cluster(channel_in_the_clear)), errors.Unavailable)
        async with dial(server.bound, TransportSettings(tls_ca=cert)) as channel:
            await get_cluster(channel)


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match="tls_cert: cannot read"):
        await make_server(tls_cert=tmp_path / "cert", tls_key=tmp_path / "key").start()
    with pytest.raises(errors.InvalidRequest, match="tls_ca: cannot read"):
        dial("127.0.0.1:1", TransportSettings(tls_ca=tmp_path / "ca"))


def test_an_address_to_dial_must_be_host_and_port() -> None:
    with pytest.raises(errors.InvalidRequest, match="address"):
        dial_blocking("nowhere")

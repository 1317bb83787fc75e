"""`specsplit health`: one line, and an exit status that a container's health check understands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from specsplit.rpc.callers import HEADER
from tests.rpc.toy import make_server, serving
from tests.support.command import run


async def health(*arguments: str) -> int:
    """The exit status of `specsplit health`, asked while this loop serves."""
    return await asyncio.to_thread(run, "health", *arguments)


async def test_a_service_that_takes_calls_is_serving_and_the_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as (server, _):
        capsys.readouterr()
        assert await health(server.bound) == 0
        assert capsys.readouterr() == (f"{server.bound} SERVING\n", "")


async def test_a_service_that_loads_is_not_serving_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    server = make_server()
    address = await server.start()
    capsys.readouterr()
    assert await health(address) == 1
    assert capsys.readouterr() == (f"{address} NOT_SERVING\n", "")
    await server.stop()


async def test_of_several_services_each_has_a_line_and_all_must_serve(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as (one, _), serving() as (two, _):
        capsys.readouterr()
        assert await health(one.bound, two.bound) == 0
        assert capsys.readouterr().out == f"{one.bound} SERVING\n{two.bound} SERVING\n"
        assert await health(one.bound, "127.0.0.1:9") == 1
        assert capsys.readouterr().out.splitlines()[0] == f"{one.bound} SERVING"


def test_where_nobody_listens_one_line_says_so_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("health", "127.0.0.1:9") == 1
    out, err = capsys.readouterr()
    assert out.startswith("127.0.0.1:9 UNREACHABLE: ")
    assert "refused" in out.lower()
    assert out.count("\n") == 1
    assert err == ""


@pytest.mark.parametrize("there", [True, False])
async def test_nobody_is_shown_the_token_that_the_environment_names_nor_is_it_read(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    async def check(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        seen.extend(key for key, _ in context.invocation_metadata() or ())
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()

    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    if there:
        (tmp_path / "operator.token").write_text("of-an-operator\n")
    monkeypatch.setenv("SPECSPLIT_CLIENT_TOKEN_FILE", str(tmp_path / "operator.token"))
    try:
        assert await health(address) == 0
    finally:
        await server.stop(None)
    assert capsys.readouterr() == (f"{address} SERVING\n", "")
    assert "user-agent" in seen and HEADER not in seen


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "HOST:PORT"),
        (("nowhere",), "expected host:port"),
        (("127.0.0.1:9", "--timeout-s", "0"), "--timeout-s"),
        (("127.0.0.1:9", "--token-file", "a.token"), "--token-file"),
        (("127.0.0.1:9", "--tls-ca", "no.pem"), "tls_ca: cannot read no.pem"),
    ],
)
def test_a_bad_option_exits_2_with_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("health", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert named in err

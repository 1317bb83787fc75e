"""What a caller is told whose TLS does not fit the server's, or who has dialled another service: what is missing, and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from specsplit.client import AsyncClient
from specsplit.errors import SpecsplitError, Unavailable, Unsupported
from specsplit.observe.exposition import expose
from specsplit.observe.metrics import CoordinatorMetrics
from specsplit.rpc import COORDINATOR_SERVICE, VERIFIER_SERVICE, Server
from specsplit.settings import CoordinatorSettings, TransportSettings
from tests.support.certificates import Authority, Certificate


@dataclass(frozen=True)
class Files:
    """Two authorities, and certificates: of this machine, of another name, and of a caller whom the second has certified."""

    authority: Authority
    other: Authority
    here: Certificate
    elsewhere: Certificate
    stranger: Certificate
    expired: Certificate
    roles: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    (folder / "roles.toml").write_text('"caller" = ["client"]\n')
    authority, other = Authority(folder), Authority(folder, "other")
    return Files(
        authority,
        other,
        authority.certify("here"),
        authority.certify("elsewhere", also="DNS:elsewhere.example"),
        other.certify("stranger"),
        authority.certify("expired", days=-1),
        folder / "roles.toml",
    )


@asynccontextmanager
async def serving(service: str, name: str, **settings: Any) -> AsyncIterator[str]:
    server = Server(
        CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0", **settings), service, services=[name]
    )
    address = await server.start()
    server.ready()
    try:
        yield address
    finally:
        await server.stop()


async def told(address: str, **transport: Any) -> SpecsplitError:
    async with AsyncClient(address, TransportSettings(**transport)) as client:
        with pytest.raises(SpecsplitError) as caught:
            await client.model_info(timeout_s=30)
    return caught.value


def server_side(files: Files, kind: str) -> Mapping[str, Any]:
    asking = {"tls_client_ca": files.authority.pem, "roles_file": files.roles}
    return {
        "clear": {},
        "TLS": files.here.shown,
        "another name": files.elsewhere.shown,
        "expired": files.expired.shown,
        "asking": {**files.here.shown, **asking},
    }[kind]


def client_side(files: Files, kind: str) -> Mapping[str, Any]:
    right = {"tls_ca": files.authority.pem}
    return {
        "clear": {},
        "TLS": right,
        "another authority": {"tls_ca": files.other.pem},
        "stranger": {**right, **files.stranger.shown},
        "expired": {**right, **files.expired.shown},
    }[kind]


@pytest.mark.parametrize(
    ("server", "client", "advice"),
    [
        ("TLS", "clear", "expects TLS (tls_ca, --tls-ca)"),
        ("asking", "clear", "expects TLS (tls_ca, --tls-ca)"),
        ("clear", "TLS", "does not speak TLS; leave out tls_ca"),
        ("asking", "TLS", "a certificate that its own authority has signed (tls_cert and tls_key"),
        ("asking", "stranger", "a certificate that its own authority has signed (tls_cert and tls_key"),
        ("TLS", "another authority", "not signed by the authority in tls_ca"),
        ("asking", "expired", "and that is not out of date"),
        ("another name", "TLS", "its certificate is for other names"),
        ("expired", "TLS", "or is out of date"),
    ],
)
async def test_whose_tls_does_not_fit_is_told_what_is_missing(
    files: Files, server: str, client: str, advice: str
) -> None:
    async with serving("coordinator", COORDINATOR_SERVICE, **server_side(files, server)) as address:
        error = await told(address, **client_side(files, client))
    assert isinstance(error, Unavailable)
    assert str(error).startswith(f"coordinator {address}: ") and advice in str(error)


async def test_who_dials_a_port_of_metrics_is_told_that_it_is_no_grpc_server() -> None:
    with expose(CoordinatorMetrics(on=True), "127.0.0.1:0") as address:
        error = await told(address)
    assert "no gRPC server" in str(error)


async def test_who_calls_a_verifier_as_a_coordinator_is_told_who_answers() -> None:
    async with serving("verifier", VERIFIER_SERVICE) as address:
        error = await told(address)
    assert isinstance(error, Unsupported)
    assert str(error) == (
        f"coordinator {address}: a verifier answers here, and 'GetModelInfo' is a call to a coordinator; give the address of one"
    )


async def test_who_calls_a_coordinator_that_lacks_the_call_is_told_that_builds_differ() -> None:
    async with serving("coordinator", COORDINATOR_SERVICE) as address:
        error = await told(address)
    assert "does not know the call 'GetModelInfo'; it may be of another build" in str(error)


async def test_who_calls_somebody_elses_server_is_told_so() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        error = await told(f"127.0.0.1:{port}")
    finally:
        await server.stop(0)
    assert "it is another service, or of another build" in str(error)

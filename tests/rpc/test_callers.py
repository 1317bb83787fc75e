"""Who may call what, over real servers: tokens, certificates, roles, and files that change."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from specsplit.errors import InvalidRequest, PermissionDenied, SpecsplitError, Unauthenticated, Unavailable
from specsplit.identity import CallerRole, Identity, digest, roles_of, token_of, tokens_of
from specsplit.rpc import COORDINATOR_SERVICE, Context, Server, caller, dial, from_rpc_error
from specsplit.rpc.callers import Callers
from specsplit.rpc.permissions import PERMISSIONS
from specsplit.settings import CoordinatorSettings, TransportSettings
from specsplit.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    drafter_pb2,
    drafter_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from tests.rpc.toy import Toy, generate, get_cluster, get_model_info
from tests.support.certificates import Authority, Certificate

CLIENT, MEMBER, OPERATOR = CallerRole.CLIENT, CallerRole.MEMBER, CallerRole.OPERATOR
FILES = (cluster_pb2, coordinator_pb2, drafter_pb2, verifier_pb2, vllm_engine_pb2, health_pb2, reflection_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OWN = sorted(method for method in METHODS if "/grpc." not in method)


class Open(Toy):
    """Says to whom it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.called_by: list[Identity] = []

    async def GetCluster(  # noqa: N802
        self, request: coordinator_pb2.GetClusterRequest, context: Context
    ) -> coordinator_pb2.GetClusterResponse:
        self.called_by.append(caller())
        return coordinator_pb2.GetClusterResponse()


class _Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Has nothing behind its methods."""

    Decode = verifier_pb2_grpc.VerifierServiceServicer.Decode
    Watch = verifier_pb2_grpc.VerifierServiceServicer.Watch
    DecodeSessions = verifier_pb2_grpc.VerifierServiceServicer.DecodeSessions
    UpdateWeights = verifier_pb2_grpc.VerifierServiceServicer.UpdateWeights


class _Drafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Has nothing behind its methods."""

    Draft = drafter_pb2_grpc.DrafterServiceServicer.Draft
    GetDrafterInfo = drafter_pb2_grpc.DrafterServiceServicer.GetDrafterInfo
    UpdateWeights = drafter_pb2_grpc.DrafterServiceServicer.UpdateWeights


class _Engine(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Has nothing behind its methods."""


class _Cluster(cluster_pb2_grpc.ClusterServiceServicer):
    """Has nothing behind its method."""

    Join = cluster_pb2_grpc.ClusterServiceServicer.Join


@asynccontextmanager
async def served(members_listen: str = "", **settings: Any) -> AsyncIterator[tuple[Server, Open]]:
    """A server with every service there is, most of them empty."""
    values = {"model": Path("unused"), "listen": "127.0.0.1:0", **settings}
    server = Server(
        CoordinatorSettings(**values), "coordinator", services=[COORDINATOR_SERVICE], members_listen=members_listen
    )
    toy = Open()
    for port in dict.fromkeys((server.grpc, server.members)):
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(toy, port)
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(_Verifier(), port)
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(_Drafter(), port)
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(_Engine(), port)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(_Cluster(), server.members)
    await server.start()
    server.ready()
    try:
        yield server, toy
    finally:
        await server.stop()


async def outcome(address: str, method: str, **transport: Any) -> SpecsplitError | None:
    """What one call of a method ends with, whose message is none."""
    async with dial(address, TransportSettings(**transport)) as channel:
        sent = channel.unary_stream(method)(b"\xff")  # one message and the end, as a stream of one would be
        try:
            async for _ in sent:
                pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
    return None


def is_let_in(outcome: SpecsplitError | None) -> bool:
    """True unless the caller was refused: what it sent is no message, and that is another complaint."""
    return not isinstance(outcome, Unauthenticated | PermissionDenied | Unavailable)


class Tokens:
    """A tokens file, and token files of callers, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "tokens.toml"
        self.file.write_text("")

    def know(self, name: str, *roles: CallerRole) -> Path:
        """Add a caller; his token file."""
        with self.file.open("a") as file:
            file.write(f'[{name}]\nroles = {[*map(str, roles)]}\nsha256 = "{digest("secret-of-" + name)}"\n')
        return self.shown(name)

    def shown(self, name: str) -> Path:
        """The token file of a caller, known or not."""
        path = self._folder / f"{name}.token"
        path.write_text(f"secret-of-{name}\n")
        return path


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def host(authority: Authority) -> Certificate:
    return authority.certify("host")


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Certificate:
    return authority.certify("alice")


def test_every_method_of_every_service_stands_in_the_table() -> None:
    optional = {"/grpc.health.v1.Health/List"}  # of a later protocol than some releases of its library have
    assert set(PERMISSIONS) | optional == set(METHODS) | optional


async def test_without_a_token_no_method_is_served_and_the_refusal_says_what_is_missing(tokens: Tokens) -> None:
    tokens.know("alice", CLIENT)
    async with served(tokens_file=tokens.file) as (server, _):
        for method in OWN:
            error = await outcome(server.bound, method)
            assert isinstance(error, Unauthenticated), method
            assert "the role" in str(error) and "no token was shown" in str(error)


@pytest.mark.parametrize("role", CallerRole)
async def test_a_token_opens_what_its_role_may_call_and_nothing_else(tokens: Tokens, role: CallerRole) -> None:
    shown = tokens.know("caller", role)
    async with served(tokens_file=tokens.file) as (server, _):
        for method in OWN:
            error = await outcome(server.bound, method, token_file=shown)
            wanted = PERMISSIONS[method]
            assert wanted is not None
            assert is_let_in(error) is (role in wanted), (method, error)
            if role not in wanted:
                assert isinstance(error, PermissionDenied)
                assert str(error).endswith(f"and caller is {role}") and " or ".join(sorted(wanted)) in str(error)


async def test_a_token_that_nobody_knows_is_refused_as_such(tokens: Tokens) -> None:
    async with served(tokens_file=tokens.file) as (server, _):
        error = await outcome(server.bound, OWN[0], token_file=tokens.shown("mallory"))
        assert isinstance(error, Unauthenticated)
        assert "the token shown is not known" in str(error)
        assert "secret-of-mallory" not in str(error)


async def test_a_servicer_is_told_who_calls(tokens: Tokens) -> None:
    shown = tokens.know("ops", OPERATOR, CLIENT)
    async with (
        served(tokens_file=tokens.file) as (server, toy),
        dial(server.bound, TransportSettings(token_file=shown)) as channel,
    ):
        await get_cluster(channel)
        assert await generate(channel) == 2
    assert toy.called_by == [Identity("ops", frozenset({OPERATOR, CLIENT}))]


async def test_health_and_reflection_ask_nobody_who_he_is(tokens: Tokens) -> None:
    async with served(tokens_file=tokens.file) as (server, _):
        for method in set(PERMISSIONS) - set(OWN):
            assert is_let_in(await outcome(server.bound, method)), method


async def test_where_callers_may_be_anonymous_they_are_clients_and_no_more(tokens: Tokens) -> None:
    async with served(tokens_file=tokens.file, anonymous_clients=True) as (server, _):
        for method in OWN:
            error = await outcome(server.bound, method)
            assert is_let_in(error) is (CLIENT in (PERMISSIONS[method] or ())), (method, error)
        unknown = await outcome(server.bound, OWN[0], token_file=tokens.shown("mallory"))
        assert isinstance(unknown, Unauthenticated), "a token that is shown counts"


async def test_the_word_before_a_token_is_read_in_any_case(tokens: Tokens) -> None:
    tokens.know("alice", CLIENT)
    async with served(tokens_file=tokens.file, anonymous_clients=True) as (server, toy), dial(server.bound) as channel:
        for scheme in ("Bearer", "bearer", "BEARER"):
            await get_cluster(channel, metadata=(("authorization", f"{scheme} secret-of-alice"),))
    assert toy.called_by == [Identity("alice", frozenset({CLIENT}))] * 3, "no one of them is anonymous"


async def test_what_an_unknown_caller_sends_is_not_parsed(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def scanned(data: bytes, descriptor: object) -> None:
        parsed.append(data)

    monkeypatch.setattr("specsplit.wire.reading.scan", scanned)
    async with served(tokens_file=tokens.file) as (server, _):
        for method in OWN:
            await outcome(server.bound, method)
    assert b"\xff" not in parsed


async def test_with_a_port_for_members_the_public_one_serves_clients_alone() -> None:
    async with served("127.0.0.1:0") as (server, _):
        for method in OWN:
            error = await outcome(server.bound, method)
            wanted = PERMISSIONS[method] or frozenset()
            assert is_let_in(error) is (CLIENT in wanted), (method, error)
            if CLIENT not in wanted:
                assert isinstance(error, PermissionDenied)
                assert "this port is for clients alone; dial members_listen" in str(error)
            assert is_let_in(await outcome(server.members_bound, method)), method


async def test_the_role_counts_on_the_port_for_members_too(tokens: Tokens) -> None:
    shown = tokens.know("alice", CLIENT)
    async with served("127.0.0.1:0", tokens_file=tokens.file) as (server, _):
        join = "/specsplit.v1.ClusterService/Join"
        assert isinstance(await outcome(server.members_bound, join), Unauthenticated)
        assert isinstance(await outcome(server.members_bound, join, token_file=shown), PermissionDenied)


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    path = tmp_path / "roles.toml"
    path.write_text('alice = ["client"]\n"verifier.example" = ["member"]\n')
    return path


@asynccontextmanager
async def served_to_certified(
    authority: Authority, host: Certificate, roles: Path
) -> AsyncIterator[tuple[Server, Open]]:
    async with served(tls_client_ca=authority.pem, roles_file=roles, **host.shown) as found:
        yield found


async def test_a_caller_without_a_certificate_or_with_one_of_another_authority_does_not_come_in(
    authority: Authority, host: Certificate, roles: Path, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other").certify("alice")
    async with served_to_certified(authority, host, roles) as (server, toy):
        for shown in ({}, stranger.shown):
            error = await outcome(server.bound, OWN[0], tls_ca=authority.pem, **shown)
            assert isinstance(error, Unavailable), shown
    assert toy.called_by == []


async def test_a_certificate_opens_what_the_roles_of_its_subject_may_call(
    authority: Authority, host: Certificate, alice: Certificate, roles: Path
) -> None:
    by_alternative_name = authority.certify("v7", "DNS:localhost,DNS:verifier.example")
    unknown = authority.certify("mallory")
    async with served_to_certified(authority, host, roles) as (server, toy):
        async with dial(server.bound, TransportSettings(tls_ca=authority.pem, **alice.shown)) as channel:
            await get_cluster(channel)
        assert toy.called_by == [Identity("alice", frozenset({CLIENT}))]
        join = "/specsplit.v1.ClusterService/Join"
        denied = await outcome(server.bound, join, tls_ca=authority.pem, **alice.shown)
        assert isinstance(denied, PermissionDenied)
        assert str(denied) == "Join needs the role member, and alice is client"
        assert is_let_in(await outcome(server.bound, join, tls_ca=authority.pem, **by_alternative_name.shown))
        refused = await outcome(server.bound, join, tls_ca=authority.pem, **unknown.shown)
        assert isinstance(refused, Unauthenticated)
        assert "'mallory, localhost, 127.0.0.1'" in str(refused)


async def test_a_changed_certificate_counts_from_the_next_connection_and_a_bad_one_is_logged_and_left_out(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    next_authority = Authority(tmp_path, "next")
    mine = authority.certify("mine")
    async with (
        served(**mine.shown) as (server, _),
        dial(server.bound, TransportSettings(tls_ca=authority.pem)) as running,
    ):
        await get_cluster(running)
        mine.chain.write_text("no certificate")
        async with dial(server.bound, TransportSettings(tls_ca=authority.pem)) as channel:
            await get_cluster(channel)
        (complaint,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert "holds no certificate in PEM" in complaint.getMessage()
        mine.replace_by(next_authority.certify("renewed"))
        async with dial(server.bound, TransportSettings(tls_ca=next_authority.pem)) as channel:
            await get_cluster(channel)
        await get_cluster(running)


async def test_who_dials_anew_shows_the_certificate_of_now(
    authority: Authority, host: Certificate, alice: Certificate, roles: Path, tmp_path: Path
) -> None:
    Certificate(tmp_path / "own.pem", tmp_path / "own.key").replace_by(alice)
    own = Certificate(tmp_path / "own.pem", tmp_path / "own.key")
    mallory = authority.certify("mallory")
    async with served_to_certified(authority, host, roles) as (server, _):
        settings: dict[str, Any] = {"tls_ca": authority.pem, **own.shown}
        method = f"/{COORDINATOR_SERVICE}/GetCluster"
        assert is_let_in(await outcome(server.bound, method, **settings))
        own.replace_by(mallory)
        assert isinstance(await outcome(server.bound, method, **settings), Unauthenticated)


async def test_roles_and_tokens_are_read_again_when_they_change_and_bad_ones_change_nothing(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    shown = tokens.know("alice", CLIENT)
    async with (
        served(tokens_file=tokens.file) as (server, _),
        dial(server.bound, TransportSettings(token_file=shown)) as channel,
    ):
        assert await generate(channel) == 2
        tokens.file.write_text("[alice]\nroles = 7\n")
        assert await generate(channel) == 2
        assert await generate(channel) == 2
        (complaint,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert "what they said before stays in force" in complaint.getMessage()
        tokens.file.write_text("")
        with pytest.raises(grpc.aio.AioRpcError, match="not known"):
            await generate(channel)
        shown.write_text("secret-of-bob\n")
        tokens.know("bob", CLIENT)
        assert await generate(channel) == 2, "the caller shows what his file says now"


@pytest.mark.parametrize("address", ["10.0.0.1:50050", "verifier-0.verifier:50051", "[fe80::1]:1"])
async def test_nobody_is_dialled_in_the_clear_beyond_this_machine_unless_that_is_allowed(
    address: str, authority: Authority
) -> None:
    with pytest.raises(InvalidRequest, match="dialled in the clear, texts and tokens included"):
        dial(address)
    for allowed in (TransportSettings(insecure=True), TransportSettings(tls_ca=authority.pem)):
        await dial(address, allowed).close()


def test_a_port_beyond_this_machine_asks_who_joins_or_has_another_for_members(tokens: Tokens) -> None:
    public: dict[str, Any] = {"model": Path("unused"), "listen": "0.0.0.0:50050", "insecure": True}
    with pytest.raises(InvalidRequest, match=r"members_listen: is required: 0\.0\.0\.0:50050"):
        CoordinatorSettings(**public)
    CoordinatorSettings(**public, members_listen="10.0.0.1:50049")
    CoordinatorSettings(**public, tokens_file=tokens.file)
    with pytest.raises(InvalidRequest, match=r"members_listen: 10\.0\.0\.1:50049 can be reached"):
        CoordinatorSettings(model=Path("unused"), members_listen="10.0.0.1:50049")


PAIRED: Iterable[Mapping[str, Any]] = (
    {"tls_client_ca": Path("ca"), "tls_cert": Path("c"), "tls_key": Path("k")},
    {"roles_file": Path("roles")},
    {"tls_client_ca": Path("ca"), "roles_file": Path("roles")},
    {"anonymous_clients": True},
)


@pytest.mark.parametrize("given", PAIRED)
def test_settings_that_would_let_in_others_than_meant_are_refused(given: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        CoordinatorSettings(model=Path("unused"), **given)
    assert caught.value.field in ("tls_client_ca", "anonymous_clients")


KNOWN = f"roles = ['client']\nsha256 = '{digest('a')}'"
UNCLEAR: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "roles_file": (
        roles_of,
        [
            "alice = 'client'",
            "alice = []",
            "alice = ['root']",
            "alice = [1]",
            "'' = ['client']",
            "[alice]\na = 1",
            "alice =",
        ],
    ),
    "tokens_file": (
        tokens_of,
        [
            "alice = 1",
            "[alice]\nroles = ['client']",
            "[alice]\nroles = ['client']\nsha256 = 'abc'",
            f"[alice]\n{KNOWN}\nnote = 1",
            f"[alice]\nroles = []\nsha256 = '{digest('a')}'",
            f"[a]\n{KNOWN}\n[b]\n{KNOWN.replace('client', 'member')}",
        ],
    ),
    "token_file": (token_of, ["", "\n", "two words", "zwei\nzeilen", "tökens"]),
}


@pytest.mark.parametrize(("setting", "text"), [(name, text) for name, (_, texts) in UNCLEAR.items() for text in texts])
def test_a_file_that_is_not_clear_is_refused(setting: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        UNCLEAR[setting][0](text)
    assert caught.value.field == setting


@pytest.mark.parametrize("setting", ["tokens_file", "roles_file"])
@pytest.mark.parametrize("text", ["", "# nobody yet\n"])
def test_a_file_that_names_nobody_is_told_of(
    setting: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "named.toml").write_text(text)
    given: dict[str, Any] = {setting: file} | (
        dict.fromkeys(("tls_client_ca", "tls_cert", "tls_key"), tmp_path) if setting == "roles_file" else {}
    )
    Callers(CoordinatorSettings(model=tmp_path, **given))
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert f"{setting} names nobody: every caller is unknown" in told.getMessage()


async def test_a_server_does_not_start_with_files_that_are_no_good(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="tokens_file: cannot read"):
        async with served(tokens_file=tmp_path / "absent"):
            pass
    await get_model_info_is_refused_nowhere()


async def get_model_info_is_refused_nowhere() -> None:
    """Who asks nobody serves everybody, as on one machine."""
    async with served() as (server, toy), dial(server.bound) as channel:
        await get_model_info(channel)
        await get_cluster(channel)
        assert [identity.name for identity in toy.called_by] == [""]

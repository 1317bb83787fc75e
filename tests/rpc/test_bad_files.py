"""Files of certificates, keys, tokens and roles that are no good are told by setting and file: by services, clients, commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specsplit.client import Client
from specsplit.errors import InvalidRequest
from specsplit.rpc import COORDINATOR_SERVICE, Server
from specsplit.rpc.channel import check_shown
from specsplit.settings import ClientSettings, CoordinatorSettings
from tests.support.certificates import Authority, Certificate
from tests.support.command import run


@dataclass(frozen=True)
class Good:
    """Files in order, of which one is replaced."""

    folder: Path
    authority: Authority
    here: Certificate
    other: Certificate

    def around(self, field: str) -> dict[str, Any]:
        """Settings that go with `field`."""
        pair = self.here.shown
        (self.folder / "roles.toml").write_text('"caller" = ["client"]\n')
        asking = {**pair, "tls_client_ca": self.authority.pem, "roles_file": self.folder / "roles.toml"}
        return {"tls_client_ca": asking, "roles_file": asking, "tls_cert": pair, "tls_key": pair}.get(field, {})


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    return Good(folder, authority, authority.certify("here"), authority.certify("other"))


def _holding(data: bytes) -> Callable[[Good, Path], Any]:
    return lambda _, path: path.write_bytes(data)


def _unreadable(_: Good, path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    path.touch(mode=0)


KINDS: Mapping[str, Callable[[Good, Path], Any]] = {
    "empty": _holding(b""),
    "binary": _holding(bytes(range(256))),
    "zeros": _holding(bytes(100)),
    "not-ascii": _holding("schlüssel\n".encode()),
    "not-utf8": _holding("schlüssel\n".encode("latin-1")),
    "thousands-of-digits": _holding(b"a = " + b"9" * 5_000),
    "deep": _holding(b"a = " + b"[" * 100_000),
    "a-damaged-certificate": lambda good, path: path.write_bytes(good.here.chain.read_bytes()[:200]),
    "a-key": lambda good, path: path.write_bytes(good.other.key.read_bytes()),
    "a-folder": lambda _, path: path.mkdir(),
    "nothing": lambda _, path: None,
    "a-link-to-itself": lambda _, path: path.symlink_to(path),
    "a-pipe": lambda _, path: os.mkfifo(path),
    "endless": lambda _, path: path.symlink_to("/dev/zero"),
    "unreadable": _unreadable,
}
FIELDS = ("tls_ca", "tls_cert", "tls_key", "token_file", "tls_client_ca", "roles_file", "tokens_file")
IN_ORDER = {("roles_file", "empty"), ("tokens_file", "empty"), ("roles_file", "a-pipe"), ("tokens_file", "a-pipe")}
"""A file without an entry shuts everybody out, which is told in the log."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def bad(kind: str, good: Good, tmp_path: Path) -> Path:
    path = tmp_path / kind
    KINDS[kind](good, path)
    return path


async def start(settings: CoordinatorSettings) -> None:
    """Start what every service has around it, with the check of what it shows to others."""
    check_shown(settings)
    server = Server(settings, "coordinator", services=[COORDINATOR_SERVICE])
    try:
        await server.start()
    finally:
        await server.stop()


@pytest.mark.parametrize("field", FIELDS)
async def test_a_service_names_the_setting_and_the_file(field: str, kind: str, bad: Path, good: Good) -> None:
    given = {**good.around(field), field: bad}
    settings = CoordinatorSettings(model=Path("unused"), listen="127.0.0.1:0", **given)
    if (field, kind) in IN_ORDER:
        await start(settings)
        return
    with pytest.raises(InvalidRequest) as caught:
        await start(settings)
    assert caught.value.field == field and str(bad) in caught.value.problem


@pytest.mark.parametrize("field", FIELDS[:4])
def test_a_client_names_the_setting_and_the_file(field: str, bad: Path, good: Good) -> None:
    given: dict[str, Any] = {"tls_ca": good.authority.pem, **good.around(field), field: bad}
    with pytest.raises(InvalidRequest) as caught, Client("127.0.0.1:1", ClientSettings(**given)) as client:
        client.model_info()
    assert caught.value.field == field and str(bad) in caught.value.problem


@pytest.mark.parametrize("command", ["status", "generate"])
def test_a_command_says_so_in_one_line(command: str, bad: Path, good: Good, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["--prompt", "x"] if command == "generate" else []
    assert run(command, *prompt, "--tls-ca", str(bad)) == 2
    said = capsys.readouterr().err
    assert said.startswith("specsplit: tls_ca: ") and str(bad) in said and said.count("\n") == 1


def test_a_token_may_come_from_a_pipe_that_somebody_writes_to() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write("secret\n")
    try:
        check_shown(ClientSettings(token_file=Path(f"/dev/fd/{reading}")))
    finally:
        os.close(reading)


async def test_a_key_of_another_certificate_is_told_as_that(good: Good) -> None:
    settings = CoordinatorSettings(
        model=Path("unused"), listen="127.0.0.1:0", tls_cert=good.here.chain, tls_key=good.other.key
    )
    with pytest.raises(InvalidRequest, match=r"^tls_key: .*is the key of another certificate than .* \(tls_cert\)"):
        await start(settings)


def test_comments_in_a_file_of_authorities_may_be_in_any_language(good: Good, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Zertifizierungsstelle für alle\n{good.authority.pem.read_text()}")
    check_shown(ClientSettings(tls_ca=bundle))

"""`specsplit tokens`, and how commands are told to show one."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest

from specsplit.cli.options import transport
from specsplit.errors import InvalidRequest
from specsplit.identity import CallerRole, Identity, digest, token_of, tokens_of
from specsplit.settings import ClientSettings
from tests.support.command import run

SECURITY = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()


def test_every_party_gets_a_token_that_the_servers_file_knows_and_nobody_else_reads(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert run("tokens", str(folder), "--client", "alice", "--client", "bob-2") == 0
    known = tokens_of((folder / "members/tokens.toml").read_text())
    roles = {"alice": "client", "bob-2": "client", "member": "member", "operator": "operator"}
    for name, role in roles.items():
        token = token_of((folder / f"{role}s" / f"{name}.token").read_text())
        assert known[digest(token)] == Identity(name, frozenset({CallerRole(role)}))
        assert token not in (folder / "members/tokens.toml").read_text()
    assert len(known) == len(roles)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) == len(roles) + 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_tokens_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tokens", str(tmp_path)) == 0
    before = {file: file.read_text() for file in tmp_path.rglob("*.t*")}
    assert run("tokens", str(tmp_path), "--client", "alice") == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert {file: file.read_text() for file in tmp_path.rglob("*.t*")} == before and len(before) == 4


@pytest.mark.parametrize("lost", ["members/member.token", "operators/operator.token"])
def test_a_token_that_is_missing_is_named_with_what_to_do_and_none_is_drawn(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tokens", str(tmp_path)) == 0
    known = (tmp_path / "members/tokens.toml").read_text()
    (tmp_path / lost).unlink()
    (tmp_path / "clients/client.token").unlink()  # it was given to the client
    capsys.readouterr()
    assert run("tokens", str(tmp_path)) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"{tmp_path / lost} is missing; ") and err.count("\n") == 1
    assert not (tmp_path / lost).exists() and (tmp_path / "members/tokens.toml").read_text() == known
    (tmp_path / "members/tokens.toml").unlink()  # as it says
    assert run("tokens", str(tmp_path)) == 0
    assert capsys.readouterr().err == ""
    shown = digest(token_of((tmp_path / lost).read_text()))
    assert shown in tokens_of((tmp_path / "members/tokens.toml").read_text()) and shown not in known


def test_tokens_of_before_there_were_folders_are_not_drawn_again_and_are_found_once_moved_as_the_docs_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, old = tmp_path / "new", tmp_path / "secrets"
    assert run("tokens", str(folder), "--client", "alice", "--client", "bob") == 0
    drawn = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    old.mkdir()
    for name, text in drawn.items():
        (old / Path(name).name).write_text(text)
    capsys.readouterr()
    assert run("tokens", str(old), "--client", "alice") == 2
    err = capsys.readouterr().err
    assert "has tokens already, in one folder for all roles" in err and "docs/security.md" in err
    assert {file.name for file in old.iterdir()} == {Path(name).name for name in drawn}, "nothing was drawn"
    (moves,) = re.findall(r"^ *cd secrets/.*\n(?: *mv .*\n)+", SECURITY, re.MULTILINE)
    subprocess.run(["/bin/sh", "-ec", moves], cwd=tmp_path, check=True)
    assert {str(file.relative_to(old)): file.read_text() for file in old.rglob("*") if file.is_file()} == drawn
    assert run("tokens", str(old)) == 0
    assert capsys.readouterr() == (f"{old / 'members/tokens.toml'} is there already; nothing was changed\n", "")


@pytest.mark.parametrize("name", ["member", "operator", "../alice", "a b", "a.b", "ä", ""])
def test_a_name_that_is_taken_or_no_file_is_refused_and_nothing_is_known(name: str, tmp_path: Path) -> None:
    assert run("tokens", str(tmp_path), "--client", name) == 2
    assert not (tmp_path / "members/tokens.toml").exists()


def test_what_a_command_is_not_told_it_finds_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSPLIT_CLIENT_TOKEN_FILE", "alice.token")
    monkeypatch.setenv("SPECSPLIT_CLIENT_INSECURE", "true")
    assert transport() == ClientSettings(token_file=Path("alice.token"), insecure=True)
    assert transport(token_file=Path("bob.token")).token_file == Path("bob.token")
    monkeypatch.setenv("SPECSPLIT_CLIENT_TOKEN", "secret")
    with pytest.raises(InvalidRequest, match="names no setting"):
        transport()


def test_a_command_dials_what_it_is_told_then_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECSPLIT_CLIENT_ADDRESS", "127.0.0.1:7")
    assert ClientSettings.load().address == "127.0.0.1:7"
    assert run("status", "--once") == 1
    assert "127.0.0.1:7" in capsys.readouterr().err
    assert run("status", "--once", "--address", "127.0.0.1:9") == 1
    err = capsys.readouterr().err
    assert "127.0.0.1:9" in err and "127.0.0.1:7" not in err


def test_a_certificate_that_would_never_be_shown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="tls_cert: is shown over TLS alone"):
        transport(tls_cert=tmp_path / "a.pem", tls_key=tmp_path / "a.key")


@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["status", "--once"], ["plan"], ["trace"]])
def test_every_command_refuses_to_speak_in_the_clear_beyond_this_machine(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--address", "10.0.0.1:50050") == 2
    assert "--insecure" in capsys.readouterr().err

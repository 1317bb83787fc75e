"""What `specsplit up` hands to its children, and what it refuses before it starts any. No process is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.cli.local import LocalCluster
from specsplit.cli.serve import SETTINGS
from specsplit.cli.tokens import write
from specsplit.identity import CallerRole
from tests.support.certificates import Authority
from tests.support.command import run

POCKET = "models/pocket/target"
BY_UP = {
    "coordinator": {"model", "listen", "web_listen"},
    "verifier": {"model", "inflate_layers", "listen", "advertise", "coordinator", "member_id", "dp_size", "tp_size"},
    "drafter": {"kind", "model", "target", "listen", "advertise", "coordinator", "member_id", "dp_size"},
}
"""What nobody but up decides."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """The clusters that would have been started."""
    clusters: list[LocalCluster] = []
    monkeypatch.setattr("specsplit.cli.up.watch", lambda cluster, _: clusters.append(cluster))
    return clusters


def up(*arguments: str, drafter: str = "ngram") -> int:
    return run("up", "--model", POCKET, "--drafter", drafter, *arguments)


def sets(*settings: str) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def config(folder: Path, text: str) -> str:
    (folder / "up.toml").write_text(text)
    return str(folder / "up.toml")


@pytest.mark.parametrize("service", SETTINGS)
def test_every_setting_reaches_the_children_or_is_refused_as_one_that_up_decides(
    service: str, started: list[LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict[str, object]()
    for name, field in SETTINGS[service].model_fields.items():
        default = field.get_default()
        if name in BY_UP[service]:
            assert up(*sets(f"{service}.{name}=x")) == 2
            assert f"specsplit: --set {service}.{name}: " in capsys.readouterr().err
        elif default is not None:
            given[name] = getattr(default, "value", default)
    assert up(*sets(*(f"{service}.{name}={value}" for name, value in given.items()))) == 0
    handed = started[0].settings(service)
    assert {name: handed[name] for name in given} == given


def test_set_counts_before_the_environment_and_that_before_the_file(
    started: list[LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSPLIT_VERIFIER_KV_TOKENS", "1600")
    monkeypatch.setenv("SPECSPLIT_VERIFIER_NUM_STEPS", "4")
    monkeypatch.setenv("SPECSPLIT_VERIFIER_TOPK", "")
    text = "[verifier]\nkv_tokens = 3200\nprefix_cache = false\nnum_steps = 2\ntopk = 2\n[drafter]\nnode_us = 2\n"
    assert up("--config", config(tmp_path, text), *sets("verifier.num_steps=3")) == 0
    verifier = started[0].settings("verifier")
    assert "kv_tokens" not in verifier, "what counts of the environment, the child reads there by itself"
    assert (verifier["prefix_cache"], verifier["num_steps"], verifier["topk"]) == (False, 3, 2)
    assert started[0].settings("drafter")["node_us"] == 2.0


@pytest.fixture
def alone(tmp_path: Path) -> str:
    """The pocket target with nothing beside it."""
    folder = tmp_path / "alone" / "target"
    folder.parent.mkdir()
    folder.symlink_to(Path(POCKET).resolve())
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "lookup"),
    [
        ([], True),
        (["--drafters", "0"], None),
        (["--drafter", "none"], None),
        (["--drafter", "ngram"], None),
        (sets("verifier.lookup=false"), False),
    ],
)
def test_where_no_model_can_draft_verifiers_look_up_by_themselves_unless_something_else_is_asked_for(
    arguments: list[str],
    lookup: bool | None,
    alone: str,
    started: list[LocalCluster],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("up", "--model", alone, *arguments) == 0
    assert started[0].settings("verifier").get("lookup") == lookup
    assert ("verifiers draft by lookup themselves" in capsys.readouterr().out) == (lookup is True)


def test_what_the_environment_says_of_lookup_is_left_to_it(
    alone: str, started: list[LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSPLIT_VERIFIER_LOOKUP", "false")
    assert run("up", "--model", alone) == 0
    assert "lookup" not in started[0].settings("verifier")


def test_several_drafters_of_no_kind_are_refused(alone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("up", "--model", alone, "--drafters", "2") == 2
    assert "--drafters: is 2, and there is nothing to start 2 of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (sets("verifier"), "--set: is 'verifier', expected SERVICE.NAME=VALUE, as verifier.kv_tokens=65536"),
        (sets("verifier.topk"), "--set: is 'verifier.topk', expected SERVICE.NAME=VALUE"),
        (
            sets("oracle.topk=1"),
            "--set oracle.topk: there is no service 'oracle'; expected coordinator, verifier or drafter",
        ),
        (sets("verifier.topq=1"), "--set verifier.topq: there is no such setting"),
        (sets("verifier.topk=many"), "--set verifier.topk: is 'many': input should be a valid integer"),
        (sets("verifier.topk=1", "verifier.topk=2"), "--set verifier.topk: is given twice"),
        (sets("verifier.model=x"), "--set verifier.model: up has an option that decides this; give --model instead"),
        (sets("drafter.listen=x"), "--set drafter.listen: up says this to every child by itself; leave it out"),
        (sets("verifier.tp_size=2"), "--set verifier.tp_size: is for processes that torchrun starts"),
        (
            sets("coordinator.heartbeat_ms=5000"),
            "--set coordinator.lost_after_ms: is 2000, expected more than heartbeat_ms",
        ),
        (sets("drafter.feature_format=float16"), "--set drafter.feature_format: drafter kind ngram reads no features"),
        (sets("drafter.expand_survival=1"), "--set drafter.expand_survival: there is no such setting any more"),
        (sets("coordinator.tokens_file=no.toml"), "--set coordinator.tokens_file: cannot read no.toml"),
        (sets("verifier.tls_ca=docs/log.md"), "--set verifier.tls_ca: docs/log.md holds no certificate in PEM"),
        (
            ["--verifiers", "2", *sets("verifier.metrics_listen=127.0.0.1:9464")],
            "--set verifier.metrics_listen: is 127.0.0.1:9464, one port, and there are 2 of this service",
        ),
        (["--drafters", "0", *sets("drafter.node_us=2")], "--set drafter.node_us: there is no drafter to give it to"),
        (["--listen", "0.0.0.0:0"], "allow it with insecure (--set coordinator.insecure=true)"),
        (["--listen", "0.0.0.0:0"], "(--set coordinator.tls_cert=FILE, --set coordinator.tls_key=FILE)"),
        (
            ["--listen", "0.0.0.0:0", *sets("coordinator.insecure=true")],
            "give members another port, or ask callers who they are (--set coordinator.tokens_file=FILE, or "
            "--set coordinator.tls_client_ca=FILE and --set coordinator.roles_file=FILE)",
        ),
        (
            ["--listen", "10.0.0.3:0", *sets("coordinator.insecure=true", "coordinator.members_listen=10.0.0.3:0")],
            "--listen: 10.0.0.3:1 is on another machine",
        ),
        (["--config", "no.toml"], "--config: there is no file no.toml"),
        (
            ["--tls-ca", "constraints.txt"],
            "--tls-ca: is given (or SPECSPLIT_CLIENT_TLS_CA), but the coordinator speaks no",
        ),
    ],
)
def test_what_is_wrong_for_a_child_is_refused_with_its_source_before_one_is_started(
    arguments: list[str], sentence: str, started: list[LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert sentence in err
    assert started == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "kv_tokens = 3\n",
            "--config: {file} has kv_tokens outside of a table; expected it below [coordinator] or [verifier]",
        ),
        ("[oracle]\nx = 1\n", "--config: {file} has the table [oracle], and there is no such service"),
        ("[verifier\n", "--config: {file} is not valid TOML"),
        (
            "[verifier]\nkv_tokens = 3\n",
            "kv_tokens in [verifier] of {file}: is 3: input should be greater than or equal to 16",
        ),
        (
            "[verifier]\nkv_token = 3\n",
            "kv_token in [verifier] of {file}: there is no such setting; did you mean kv_tokens?",
        ),
        ("[verifier.more]\nkv_tokens = 3\n", "more in [verifier] of {file}: there is no such setting"),
        (
            "[drafter]\nkind = 'ngram'\n",
            "kind in [drafter] of {file}: up has an option that decides this; give --drafter",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_refused_with_table_and_file(
    text: str, sentence: str, tmp_path: Path, started: list[LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, text)
    assert up("--config", file) == 2
    assert sentence.format(file=file) in capsys.readouterr().err
    assert started == []


def test_a_wrong_value_in_the_environment_is_blamed_on_its_variable(
    monkeypatch: pytest.MonkeyPatch, started: list[LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECSPLIT_DRAFTER_NODE_US", "0")
    assert up() == 2
    assert capsys.readouterr().err.startswith("specsplit: SPECSPLIT_DRAFTER_NODE_US: is '0'")
    assert started == []


def test_children_that_would_not_be_let_in_by_one_another_are_not_started(
    tmp_path: Path, started: list[LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    shown = authority.certify("localhost").shown
    write(tmp_path, {"alice": CallerRole.CLIENT, "member": CallerRole.MEMBER})
    listening = [f"tls_cert={shown['tls_cert']}", f"tls_key={shown['tls_key']}"]
    given: list[str] = []

    def lacks(more: list[str], sentence: str) -> None:
        given.extend(more)
        assert up(*given) == 2
        assert capsys.readouterr().err.startswith(f"specsplit: {sentence}")

    services = ("coordinator", "verifier", "drafter")
    lacks(
        sets(*(f"coordinator.{each}" for each in listening)),
        "--set verifier.tls_ca: is required: the coordinator speaks",
    )
    lacks(sets(f"verifier.tls_ca={authority.pem}"), "--set drafter.tls_ca: is required: the coordinator speaks TLS")
    lacks(sets(f"drafter.tls_ca={authority.pem}"), "--set drafter.tls_cert: is required: the verifier speaks TLS")
    given += sets(*(f"drafter.{each}" for each in listening))
    assert up(*given) == 0
    lacks(
        sets(*(f"verifier.{each}" for each in listening)),
        "--set coordinator.tls_ca: is required: the verifier speaks TLS",
    )
    given += sets(f"coordinator.tls_ca={authority.pem}")
    assert up(*given) == 0
    tokens = tmp_path / "members/tokens.toml"
    lacks(sets(*(f"{each}.tokens_file={tokens}" for each in services)), "--set verifier.token_file: is required")
    given += sets(*(f"{each}.token_file={tmp_path / 'members/member.token'}" for each in services))
    lacks(
        [], "--token-file: is required: the coordinator asks callers for a token (tokens_file); give that of a client"
    )
    alice, member = tmp_path / "clients/alice.token", tmp_path / "members/member.token"
    assert up(*given, "--token-file", str(member)) == 2
    assert "holds the token of 'member', who is no client; give that of a client" in capsys.readouterr().err
    assert up(*given[:-2], *sets(f"drafter.token_file={alice}"), "--token-file", str(alice)) == 2
    assert "--set drafter.token_file: " in (err := capsys.readouterr().err)
    assert "holds the token of 'alice', who is no member; the coordinator needs that of a member" in err
    assert up(*given, "--token-file", str(alice)) == 0
    transport = started[-1].transport
    assert transport is not None and transport.tls_ca == authority.pem


@pytest.mark.parametrize(
    ("listen", "members"),
    [("127.0.0.1:0", "127.0.0.1:0"), ("localhost:0", "localhost:0"), ("[::1]:0", "[::1]:0")],
)
def test_members_listen_under_the_host_that_the_coordinator_has_on_this_machine(
    listen: str, members: str, started: list[LocalCluster]
) -> None:
    assert up("--listen", listen) == 0
    assert started[0].settings("verifier")["listen"] == started[0].settings("drafter")["listen"] == members

"""What `specsplit up --http-listen` refuses, and what it says where there is no gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsplit.cli import gateway
from specsplit.cli.gateway import Gateway, check_http
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.settings import TransportSettings
from tests.support.command import run


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "find_spec", lambda name: None)
    with pytest.raises(
        Unavailable, match=r"^the gateway \(package smg\) is not installed here: pip install 'specsplit\[gateway\]'$"
    ):
        Gateway("127.0.0.1:1", "127.0.0.1:0")


@pytest.mark.parametrize("listen", ["0.0.0.0:8000", "[::]:8000", "*:8000", "gateway.example:8000"])
def test_it_listens_on_this_machine_alone_since_it_asks_nobody_for_a_key(listen: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--http-listen: is .*, and HTTP there would be in the clear"):
        check_http("--http-listen", listen, TransportSettings())


@pytest.mark.parametrize("listen", ["127.0.0.1:8000", "[::1]:0", "localhost:8000"])
def test_an_address_of_this_machine_is_taken(listen: str) -> None:
    check_http("--http-listen", listen, TransportSettings())


def test_a_coordinator_that_asks_for_tokens_has_to_let_the_gateway_in_without_one(tmp_path: Path) -> None:
    shown = TransportSettings(token_file=tmp_path / "alice.token")
    with pytest.raises(InvalidRequest, match=r"goes with no --token-file.*anonymous_clients=true"):
        check_http("--http-listen", "127.0.0.1:8000", shown)


def test_a_coordinator_that_speaks_tls_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="goes with no TLS: the gateway speaks gRPC in the clear alone"):
        check_http("--http-listen", "127.0.0.1:8000", TransportSettings(tls_ca=tmp_path / "ca.pem"))


def test_up_refuses_before_it_starts_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("up", "--http-listen", "0.0.0.0:8000") == 2
    said = capsys.readouterr()
    assert said.err.startswith("specsplit: --http-listen: is 0.0.0.0:8000, and HTTP there would be in the clear")
    assert said.out == ""

"""host:port: names and IP addresses, and nothing that gRPC would take beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specsplit.errors import InvalidRequest
from specsplit.settings import DrafterSettings
from specsplit.settings.address import check_dialable, split
from specsplit.values import DrafterKind

SCHEMES = [
    "unix:/run/secret.sock:1",
    "unix:0:1",
    "unix-abstract:name:1",
    "dns:///internal:80",
    "dns://8.8.8.8/internal:80",
    "dns:internal:80",
    "xds:cluster:1",
    "xds:///cluster:1",
    "ipv4:10.0.0.1,10.0.0.2:80",
    "ipv6:[::1]:80",
    "vsock:1:2",
    "http://internal:80",
    "user@internal:80",
    "internal/path:80",
    "inter nal:80",
    "internal\n:80",
    "::1:80",
    "[::1:80",
    "[::1]]:80",
    "[internal]:80",
    "-internal:80",
    "a..b:80",
    "internal:٣",
    "n" * 254 + ":80",
]


@pytest.mark.parametrize("address", SCHEMES)
def test_what_is_neither_a_name_nor_an_ip_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="expected host:port") as caught:
        split("address", address)
    assert caught.value.field == "address"


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("verifier-0.verifier:50051", ("verifier-0.verifier", 50051)),
        ("specsplit_verifier_1:50051", ("specsplit_verifier_1", 50051)),
        ("a.example.:1", ("a.example.", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[fe80::1]:0", ("fe80::1", 0)),
        ("*:50051", ("*", 50051)),
    ],
)
def test_a_name_or_an_ip_address_with_a_port_is_taken_apart(address: str, parts: tuple[str, int]) -> None:
    assert split("address", address) == parts


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "*:1", "10.0.0.1:0"])
def test_what_one_can_listen_at_and_nobody_dial_is_no_address_of_a_member(address: str) -> None:
    split("listen", address)
    with pytest.raises(InvalidRequest, match="nobody can dial"):
        check_dialable("address", address)


@pytest.mark.parametrize(
    ("given", "advertised"),
    [
        ("fd00::1:50052", "[fd00::1]:50052"),
        ("fd00:10:244:1:2:3:4:5:50052", "[fd00:10:244:1:2:3:4:5]:50052"),
        ("[fd00::1]:50052", "[fd00::1]:50052"),
        ("10.244.0.7:50052", "10.244.0.7:50052"),
        ("drafter-0.drafter:50052", "drafter-0.drafter:50052"),
    ],
)
def test_a_member_advertises_the_address_of_its_pod_of_either_family(given: str, advertised: str) -> None:
    assert DrafterSettings(advertise=given, kind=DrafterKind.NGRAM).advertise == advertised


@pytest.mark.parametrize("given", ["fd00::1", "fd00:0:0:0:0:0:0:1", "::1", "fd00::1:port"])
def test_an_ipv6_address_without_a_port_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="expected host:port"):
        DrafterSettings(advertise=given, kind=DrafterKind.NGRAM)


def test_any_module_of_settings_may_be_the_first_that_is_imported() -> None:
    for module in ("engine", "service", "coordinator", "address", "units", "public"):
        subprocess.run([sys.executable, "-c", f"import specsplit.settings.{module}"], check=True)

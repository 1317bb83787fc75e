"""A cluster whose processes reach one another over IPv6 alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from specsplit.cli.local import Child
from specsplit.client import Client
from tests.system.conftest import SERIAL

POCKET = Path("models/pocket/target")


def require_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this host has no IPv6: nothing can listen on ::1 ({error})")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, list[str]]]:
    """The coordinator's address, of a cluster with a verifier and a drafter, and what all of them have written."""
    require_ipv6()
    lines: list[str] = []
    with ExitStack() as stack:

        def child(name: str, **options: object) -> Child:
            started = Child(name, name, {"listen": "[::1]:0", **options}, lambda _, line: lines.append(line))
            stack.callback(started.kill)
            return started

        coordinator = child("coordinator", model=POCKET, metrics_listen="[::]:0", insecure=True)
        address = coordinator.wait_listening(60)
        child("verifier", model=POCKET, coordinator=address, member_id="v1")
        child("drafter", kind="ngram", coordinator=address, member_id="d1")
        with Client(address) as client:
            until = time.monotonic() + 120
            while len(client.cluster(timeout_s=30).members) < 2:
                assert time.monotonic() < until, "\n".join(lines)
                time.sleep(0.05)
        yield address, lines


def test_a_request_is_served_with_drafts(cluster: tuple[str, list[str]]) -> None:
    address, _ = cluster
    assert address.startswith("[::1]:")
    with Client(address) as client:
        members = client.cluster(timeout_s=30).members
        results = [
            client.generate("a b c a b c a b", drafter=kind, max_tokens=16, ignore_eos=True, plan=SERIAL, timeout_s=120)
            for kind in ("ngram", "none")
        ]
    assert {member.address.rpartition(":")[0] for member in members} == {"[::1]"}
    assert results[0].tokens == results[1].tokens
    assert results[0].done.drafter == "d1" and results[0].speculation.drafted > 0


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_every_interface_is_one_of_either_family(cluster: tuple[str, list[str]], host: str) -> None:
    _, lines = cluster
    (line,) = (line for line in lines if "metrics on http://[::]:" in line)
    port = line.partition("metrics on http://[::]:")[2].partition("/")[0]
    with urlopen(f"http://{host}:{port}/metrics") as answer:
        assert answer.status == 200

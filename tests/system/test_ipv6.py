"""A cluster whose processes reach one another over IPv6 alone, listeners of both families, and a host that has no IPv6."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from urllib.request import urlopen

import pytest

from specsplit.cli.local import Child
from specsplit.client import Client
from tests.system.conftest import SERIAL

POCKET = Path("models/pocket/target")
METRICS, PAGE = "metrics on http://", "page on http://"
"""What a service says of a place, in front of its address."""


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

        coordinator = child("coordinator", model=POCKET, metrics_listen="[::]:0", web_listen="[::]:0", insecure=True)
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
    for place in (METRICS, PAGE):
        assert status(host, place, lines) == 200


@pytest.mark.parametrize("everywhere", ["[::]", "*"])
def test_every_interface_is_one_of_ipv4_alone_where_the_host_has_no_ipv6(everywhere: str) -> None:
    listens = [f"--{each}={everywhere}:0" for each in ("listen", "metrics-listen", "web-listen", "members-listen")]
    service = ["-m", "specsplit", "serve", "coordinator", f"--model={POCKET}", "--insecure", *listens]
    command = [sys.executable, "-m", "tests.support.without_ipv6", sys.executable, *service]
    with Popen(command, stdout=PIPE, stderr=STDOUT, text=True) as process:
        try:
            lines = list(until(process, "serving"))
            assert status("127.0.0.1", METRICS, lines) == status("127.0.0.1", PAGE, lines) == 200
            for place in ("listening on ", "listening for members on "):
                with Client(f"127.0.0.1:{port_in(place, lines)}") as client:
                    assert client.cluster(timeout_s=30).members == ()
        finally:
            process.kill()


def port_in(place: str, lines: Iterable[str]) -> str:
    """The port that a service has told of behind these words."""
    (found,) = {found[1] for line in lines if (found := re.search(rf"{re.escape(place)}[^ ]*:(\d+)", line))}
    return found


def status(host: str, place: str, lines: Iterable[str]) -> int:
    path = "metrics" if place == METRICS else ""
    with urlopen(f"http://{host}:{port_in(place, lines)}/{path}") as answer:
        return answer.status


def until(process: Popen[str], word: str) -> Iterator[str]:
    """What a process writes, up to a line with this word."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        yield line
        if word in line:
            return
    pytest.fail("".join(lines))

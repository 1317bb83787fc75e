"""A coordinator behind the proxy of deploy/proxy: one address has so many connections, and who says nothing does not reach it."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from benchmarks.ports import free_ports
from scripts.printed import ROOT
from specsplit.cli.local import LocalCluster
from specsplit.client import Client
from specsplit.settings import TransportSettings
from tests.support.certificates import Authority
from tests.support.toys import alphabet_target

CONFIGURATION = ROOT / "deploy" / "proxy" / "haproxy.cfg"
PER_ADDRESS = 64
"""Connections of one address that it lets in at a time."""
pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="haproxy is not installed (Debian: apt-get install haproxy)"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def cluster(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A coordinator over TLS that has hardly any room for connections, and a verifier."""
    with LocalCluster(
        alphabet_target(tmp_path_factory.mktemp("alphabet")),
        coordinator=authority.certify("coordinator").shown,
        verifier={"tls_ca": authority.pem},
        transport=TransportSettings(tls_ca=authority.pem),
    ) as cluster:
        resource.prlimit(cluster.coordinator.pid, resource.RLIMIT_NOFILE, (256, 256))
        yield cluster


@pytest.fixture(scope="module")
def proxy(cluster: LocalCluster) -> Iterator[tuple[str, int]]:
    """Where it listens."""
    port = free_ports(1)
    places = {"SPECSPLIT_PROXY_LISTEN": f"127.0.0.1:{port}", "SPECSPLIT_COORDINATOR": cluster.address}
    with subprocess.Popen(["haproxy", "-W", "-f", str(CONFIGURATION)], env=os.environ | places) as process:
        try:
            _await_listening(port, process)
            yield "127.0.0.1", port
        finally:
            process.terminate()


def _await_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("haproxy does not listen")


def is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def letters(proxy: tuple[str, int], authority: Authority) -> str:
    with Client(f"{proxy[0]}:{proxy[1]}", TransportSettings(tls_ca=authority.pem)) as client:
        return client.generate("xyz a", max_tokens=20, timeout_s=60).text


def test_while_one_address_opens_very_many_connections_the_client_of_another_is_served(
    proxy: tuple[str, int], cluster: LocalCluster, authority: Authority
) -> None:
    before = len(os.listdir(f"/proc/{cluster.coordinator.pid}/fd"))
    with ExitStack() as stack:
        silent: list[socket.socket] = []
        for _ in range(1100):
            with suppress(
                ConnectionResetError
            ):  # it hangs up on one too many, which may be seen before the connection is made
                silent.append(stack.enter_context(socket.create_connection(proxy, source_address=("127.0.0.2", 0))))
        assert len(silent) >= PER_ADDRESS
        assert letters(proxy, authority) == "bcdefghijklmnopqrstu"
        until = time.monotonic() + 60
        while (left := sum(map(is_open, silent))) > PER_ADDRESS:
            assert time.monotonic() < until, f"{left} connections of one address are open"
            time.sleep(0.05)
        assert letters(proxy, authority) == "bcdefghijklmnopqrstu"
        assert len(os.listdir(f"/proc/{cluster.coordinator.pid}/fd")) < before + 16, (
            "none of them got to the coordinator"
        )


def test_who_connects_and_says_nothing_is_hung_up_on(proxy: tuple[str, int]) -> None:
    with socket.create_connection(proxy, timeout=60, source_address=("127.0.0.3", 0)) as silent:
        assert silent.recv(1) == b""


def test_it_may_listen_on_both_families(tmp_path: Path) -> None:
    places = {"SPECSPLIT_PROXY_LISTEN": "[::]:443", "SPECSPLIT_COORDINATOR": "127.0.0.1:50050"}
    subprocess.run(["haproxy", "-c", "-f", str(CONFIGURATION)], env=os.environ | places, check=True, cwd=tmp_path)

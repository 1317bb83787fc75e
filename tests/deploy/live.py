"""A real Prometheus with the project's own configuration, and a gateway to scrape whose numbers are recorded."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from scripts.printed import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
GATEWAY = ROOT / "tests" / "data" / "gateway" / "metrics.txt"
"""What smg exposes; tests/data/gateway/README.md says how it is recorded."""
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
)


def promtool(*arguments: str | Path) -> None:
    """Fails with what promtool says if it finds fault."""
    ended = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def configuration(targets: Mapping[str, Sequence[str]], scrape_interval: str = "1s") -> str:
    """deploy/prometheus/prometheus.yml with addresses, by job, in the place of names; a job that is not named has none."""
    config: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": scrape_interval, "evaluation_interval": scrape_interval}
    config["rule_files"] = [str(FOLDER / each) for each in config["rule_files"]]
    assert set(targets) <= {job["job_name"] for job in config["scrape_configs"]}
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
    return yaml.safe_dump(config)


@contextmanager
def prometheus(targets: Mapping[str, Sequence[str]], folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes these addresses, by job, every second: its URL."""
    (folder / "prometheus.yml").write_text(configuration(targets))
    port = _free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            _await_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def recorded_gateway() -> Iterator[str]:
    """The recorded gateway at /metrics, where its counters and histograms grow from scrape to scrape: host:port."""
    scrapes = count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = grown(GATEWAY.read_text(), next(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def grown(exposition: str, times: int) -> str:
    """An exposition as it would be had everything happened so many times; gauges stay as they are."""
    lines, kind = list[str](), ""
    for line in exposition.splitlines():
        before, _, last = line.rpartition(" ")
        kind = last if line.startswith("# TYPE ") else kind
        fixed = line.startswith("#") or kind == "gauge"
        lines.append(line if fixed else f"{before} {float(last) * times}")
    return "\n".join(lines) + "\n"


def query(url: str, path: str, **arguments: str) -> Any:
    """What the HTTP API answers."""
    with urlopen(f"{url}/api/v1/{path}", urlencode(arguments).encode(), timeout=30) as reply:
        return json.load(reply)["data"]


def _await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"{url}/-/ready", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"prometheus did not get ready (exit status {process.poll()})")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])

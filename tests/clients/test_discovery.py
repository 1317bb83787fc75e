"""The gateway with the options of deploy/kubernetes/gateway finds a coordinator by its labels, and asks for no more than its role may."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import yaml

from specsplit.cli.local import LocalCluster
from tests.support.eventually import eventually
from tests.support.ranks import free_port

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OBJECTS = [
    each
    for name in ("gateway", "discovery")
    for each in yaml.safe_load_all((FOLDER / "gateway" / f"{name}.yaml").read_text())
]
COORDINATOR = next(yaml.safe_load_all((FOLDER / "base" / "coordinator.yaml").read_text()))
KEY = "a-key"


def of_kind(kind: str) -> Any:
    return next(each for each in OBJECTS if each["kind"] == kind)


class Kubernetes(ThreadingHTTPServer):
    """As much of its API as lists pods, one of which there is, and lets them be watched, which nothing comes of."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: set[tuple[str, str]] = set()
        """(verb, path)."""
        self.over = threading.Event()

    def pods(self, selector: str) -> dict[str, Any]:
        labels: dict[str, str] = COORDINATOR["spec"]["template"]["metadata"]["labels"]
        found = {**dict(each.split("=") for each in selector.split(","))}.items() <= labels.items()
        pod = {
            "metadata": {
                "name": "coordinator-0",
                "namespace": "specsplit",
                "uid": "1",
                "resourceVersion": "1",
                "labels": labels,
            },
            "spec": {"containers": [{"name": "coordinator"}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        }
        return {
            "apiVersion": "v1",
            "kind": "PodList",
            "metadata": {"resourceVersion": "1"},
            "items": [pod] if found else [],
        }


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Kubernetes  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        wish = parse_qs(url.query)
        watched = "watch" in wish
        self.server.asked.add(("watch" if watched else "list", url.path))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if watched:
            self.wfile.flush()
            self.server.over.wait()
        else:
            self.wfile.write(json.dumps(self.server.pods(wish["labelSelector"][0])).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def kubernetes() -> Iterator[Kubernetes]:
    with Kubernetes() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()


def options(ports: Mapping[str, int]) -> list[str]:
    """The command of the manifest, with its variables filled in, at ports of this machine."""
    (container,) = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {"NAMESPACE": "specsplit", "API_KEY": KEY}
    filled = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], each) for each in container["args"]]
    moved = {
        **{f"--{name}": str(port) for name, port in ports.items()},
        "--host": "127.0.0.1",
        "--prometheus-host": "127.0.0.1",
    }
    moved["--shutdown-grace-period-secs"] = "1"
    return [f"{name}={moved.get(name, value)}" if equals else name for name, equals, value in map(apart, filled)]


def apart(option: str) -> tuple[str, str, str]:
    """Of a word that is no option, all is its name."""
    return option.partition("=") if option.startswith("--") else (option, "", "")


def status(url: str, key: str = "", body: bytes | None = None) -> int:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except HTTPError as error:
        return error.code
    except OSError:
        return 0


async def test_it_finds_the_coordinator_and_asks_for_what_its_role_allows_and_callers_for_the_key(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    ports = {name: free_port() for name in ("port", "health-check-port", "prometheus-port")}
    ports["service-discovery-port"] = int(cluster.address.rpartition(":")[2])
    with kubernetes() as api:
        config = {
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "gateway"}}],
            "users": [{"name": "gateway", "user": {}}],
            "current-context": "here",
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")}
        command = [sys.executable, "-m", "smg.launch_router", *options(ports)]
        with started(command, environment):
            await eventually(lambda: status(f"http://127.0.0.1:{ports['health-check-port']}/readiness") == 200)
            completions = f"http://127.0.0.1:{ports['port']}/v1/completions"
            body = json.dumps({"model": "target", "prompt": "def ", "max_tokens": 2}).encode()
            assert [status(completions, key, body) for key in ("", "another", KEY)] == [401, 401, 200]
            await eventually(lambda: len(api.asked) == 2)
        allowed = {verb for rule in of_kind("Role")["rules"] for verb in rule["verbs"]}
        assert api.asked == {(verb, "/api/v1/namespaces/specsplit/pods") for verb in allowed}


@contextmanager
def started(command: list[str], environment: Mapping[str, str]) -> Iterator[None]:
    with subprocess.Popen(command, env=dict(environment)) as process:
        try:
            yield
        finally:
            process.terminate()

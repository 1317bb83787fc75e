"""The services of docker-compose.yml, and of what is laid over it, unchanged, brought up by docker-compose on an engine of our own."""

from __future__ import annotations

import json
import os
import socket
import time
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.containers.engine import Engine
from scripts.containers.shell import Failed, run

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("coordinator", "verifier", "drafter")
IMAGES = (*SERVICES, "gateway")
"""What is built of the Dockerfile: ours, and a program of others before them."""


class Stack:
    """One compose project. Use it as a context manager: what is up when it ends is taken down."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        """`folder` is for a file that lets the builds use the host's network, since the engine has no default bridge."""
        self.engine = engine
        self._project = f"specsplit-proof-{os.getpid()}"
        self.network = f"{self._project}_default"
        """What the containers are in, once one of them is up."""
        self.secrets = f"{self._project}_members"
        """The volume with what services are given of the tokens."""
        self.address = f"127.0.0.1:{_free_port()}"
        """Where the coordinator is published."""
        self.page = f"127.0.0.1:{_free_port()}"
        """Where its page is."""
        self.http = f"127.0.0.1:{_free_port()}"
        """Where the gateway is."""
        self.http_key = "a-key;$HOME'x'*"
        """What callers show there: with characters that a shell would take for its own."""
        self._env = {
            **engine.env,
            "SPECSPLIT_PUBLISH": self.address,
            "SPECSPLIT_PUBLISH_PAGE": self.page,
            "SPECSPLIT_PUBLISH_HTTP": self.http,
            "SPECSPLIT_GATEWAY_API_KEY": self.http_key,
        }
        self._builds = folder / "builds.yml"
        self._builds.write_text(json.dumps({"services": {name: {"build": {"network": "host"}} for name in IMAGES}}))
        self._files = (ROOT / "docker-compose.yml",)

    def overlaid(self, file: str) -> Stack:
        """The same project with one more compose file, a path in the repository."""
        other = copy(self)
        other._files = (*self._files, ROOT / file)
        return other

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        """What `docker-compose` writes. Raises Failed."""
        files = [word for file in (*self._files, self._builds) for word in ("--file", str(file))]
        project = ["--project-name", self._project, "--project-directory", str(ROOT)]
        return run(["docker-compose", *files, *project, *arguments], env=self._env, timeout_s=timeout_s)

    def containers(self, service: str) -> list[str]:
        """Ids of the containers of a service, stopped ones too."""
        labels = (f"com.docker.compose.project={self._project}", f"com.docker.compose.service={service}")
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return self.engine.docker("ps", "--all", "--quiet", *filters).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """Everything the engine knows of a container or image."""
        return json.loads(self.engine.docker("inspect", container))[0]

    def wait_healthy(self, timeout_s: float) -> None:
        """Return once every container says that it is healthy. Raises Failed with the log of one that does not."""
        deadline = time.monotonic() + timeout_s
        while unhealthy := [
            each for name in IMAGES for each in self.containers(name) if self._health(each) != "healthy"
        ]:
            if time.monotonic() > deadline:
                state = json.dumps(self.inspect(unhealthy[0])["State"], indent=1)
                raise Failed(f"not healthy after {timeout_s:g} s: {state}\n{self.log(unhealthy[0])[-4000:]}")
            time.sleep(1)

    def log(self, container: str) -> str:
        """Everything a container wrote."""
        return self.engine.docker("logs", container)

    def python(self, container: str, program: str) -> str:
        """What a Python program prints that runs inside a container."""
        return self.engine.docker("exec", container, "python", "-c", program)

    def _health(self, container: str) -> str:
        return self.inspect(container)["State"]["Health"]["Status"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.compose("down", "--volumes", "--timeout", "10", timeout_s=90)
        except Failed as failure:
            print(f"containers: {failure}", flush=True)  # the engine removes what this leaves


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

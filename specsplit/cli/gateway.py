"""The gateway `smg` before a coordinator: the OpenAI API over HTTP, from a process of its own (docs/api.md)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from specsplit.cli.drawn_port import DrawnPort
from specsplit.cli.process import Listener, Process, arguments
from specsplit.errors import DeadlineExceeded, InvalidRequest, Unavailable
from specsplit.settings import TransportSettings
from specsplit.settings.address import is_loopback, split

_STOP_S: Final = 10.0
_GRACE_S: Final = 5
"""Requests that run when the gateway is told to end have so long."""
_INSTALL: Final = "pip install 'specsplit[gateway]'"


class Gateway(Process):
    """A gateway of this machine. A context manager: inside it programs are answered at `url`."""

    def __init__(
        self,
        coordinator: str,
        listen: str,
        listener: Listener | None = None,
        start_timeout_s: float = 60.0,
        adapters: Sequence[str] = (),
    ) -> None:
        """Starts it. `coordinator`: host:port, and `adapters` those of its ports for adapters.

        `listen`: host:port of HTTP; port 0 takes any free one. Raises Unavailable if the gateway is not installed.
        """
        check_installed()
        engines = (coordinator, *adapters)
        self._models = len(engines)
        self._start_timeout_s = start_timeout_s
        with closing(DrawnPort(listen)) as http, closing(DrawnPort("127.0.0.1:0")) as metrics:
            self._host, self._port = split("listen", http.listen)
            self.metrics_url: Final = f"http://{metrics.listen}/metrics"
            ports = (http.listen, metrics.listen)
        options = _options(engines, *ports)
        super().__init__(
            "gateway", [sys.executable, "-m", "specsplit.cli.gateway_child", *arguments(options)], listener
        )

    @property
    def url(self) -> str:
        """The base of the API, as the package openai takes it."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/v1"

    def wait_ready(self) -> None:
        """Return once requests are answered.

        Raises Unavailable, with the end of its output, if the process ends instead, DeadlineExceeded if it takes too long.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while (said := self._readiness()) is not None:
            self.require_alive()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"the gateway does not answer after {self._start_timeout_s:g} s ({said}); its last line: {self.last_line}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it is still there after some seconds."""
        self.terminate()
        if self.wait(_STOP_S) is None:
            self.kill()

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _readiness(self) -> str | None:
        """What it says while it does not answer requests yet; None: it does."""
        try:
            ready, said = self._got("/readiness")
            if ready:
                ready, said = self._got("/v1/models")
                ready = ready and len(json.loads(said)["data"]) == self._models
        except (OSError, HTTPException, ValueError) as error:
            return str(error)
        return None if ready else said

    def _got(self, path: str) -> tuple[bool, str]:
        """Whether the status is 200, and the body."""
        with closing(HTTPConnection(self._host, self._port, timeout=5)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status == 200, response.read().decode(errors="replace")


def check_installed() -> None:
    """Raise Unavailable, with what to type, if there is no gateway in this environment."""
    if find_spec("smg") is None:
        raise Unavailable(f"the gateway (package smg) is not installed here: {_INSTALL}")


def adapter_listen(folder: Path) -> str:
    """The coordinator's setting of that name for the adapters in a folder: any free port of this machine for each."""
    names = sorted(each.parent.name for each in folder.glob("*/adapter_config.json"))
    return ",".join(f"{name}=127.0.0.1:0" for name in names)


def check_http(field: str, listen: str, transport: TransportSettings) -> None:
    """Raise InvalidRequest naming `field` if other machines reach the address, or the coordinator speaks TLS or asks for a token."""
    if not is_loopback(split(field, listen)[0]):
        raise InvalidRequest(
            field,
            f"is {listen}, and HTTP there would be in the clear and ask nobody for a key; give an address of this machine alone "
            "(127.0.0.1:8000), or start a gateway with keys and TLS by hand, as docs/api.md says",
        )
    if transport.tls_ca is not None:
        raise InvalidRequest(
            field, "goes with no TLS: the gateway speaks gRPC in the clear alone; leave tls_cert of the coordinator out"
        )
    if transport.token_file is not None:
        raise InvalidRequest(
            field,
            "goes with no --token-file: the gateway shows none; let callers without a token in as clients "
            "(--set coordinator.anonymous_clients=true), and leave it out",
        )


def _options(engines: Sequence[str], http: str, metrics: str) -> Mapping[str, object]:
    """The gateway neither retries nor breaks a circuit: its workers are one coordinator, which queues and fails over by itself."""
    (host, port), (metrics_host, metrics_port) = split("listen", http), split("listen", metrics)
    return {
        "worker_urls": tuple(f"grpc://{address}" for address in engines),
        "worker_startup_check_interval": 1,
        "host": host,
        "port": port,
        "prometheus_host": metrics_host,
        "prometheus_port": metrics_port,
        "disable_retries": True,
        "disable_circuit_breaker": True,
        "shutdown_grace_period_secs": _GRACE_S,
        "log_level": "warn",
        "log_json": True,
    }

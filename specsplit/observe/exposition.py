"""The metrics of a process over HTTP, in the format that the scraper asks for: OpenMetrics with exemplars, or Prometheus' older text."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from specsplit.errors import InvalidRequest
from specsplit.observe.metrics import Metrics
from specsplit.settings import address

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger(__name__)
REFRESH_S = 1.0
"""How long a scrape waits for a busy event loop. After that it gets the counters as they are, and the gauges of the scrape before."""
PATH = "/metrics"
METHODS = ("GET", "HEAD")
Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status, headers and body."""


@contextmanager
def expose(metrics: Metrics, listen: str) -> Generator[str]:
    """Serve `metrics` at http://`listen`/metrics on a thread of its own; gives host:port as bound. Does nothing if they are off.

    To be entered on the event loop, which brings the gauges up to date before every scrape. Raises InvalidRequest if `listen` cannot
    be bound.
    """
    if not metrics.on:
        yield ""
        return
    host, port = address.split("metrics_listen", listen)
    registry = CollectorRegistry()
    registry.register(_Refreshed(metrics, asyncio.get_running_loop()))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, address.bindable(host), registry)
    except OSError as error:
        problem = f"cannot bind {listen} ({error.strerror}); is the address this machine's, and the port free?"
        raise InvalidRequest("metrics_listen", problem) from error
    if anywhere := server.get_app():
        server.set_app(_at_its_path(anywhere))
    bound = f"{listen.rpartition(':')[0]}:{server.server_port}"
    _log.info("metrics on http://%s/metrics", bound)
    try:
        yield bound
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _at_its_path(metrics: WSGIApplication) -> WSGIApplication:
    """What answers at PATH with `metrics`, elsewhere with 404, and a HEAD as a GET without its body: the library's own answers anywhere."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        asked = {**environ, "REQUEST_METHOD": "GET", "HTTP_ACCEPT": _keeping_colons(environ.get("HTTP_ACCEPT", ""))}
        status, headers, body = _refusal(method, path) or _answer(metrics, asked)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]

    return answer


def _keeping_colons(accept: str) -> str:
    """A header Accept under which the library writes names in OpenMetrics as they are; else it has underscores for the colons of vLLM's."""

    def unescaped(words: Sequence[str]) -> Sequence[str]:
        if words[0].strip() != "application/openmetrics-text":
            return words
        return [*(word for word in words if not word.strip().startswith("escaping=")), "escaping=allow-utf-8"]

    return ",".join(";".join(unescaped(kind.split(";"))) for kind in accept.split(","))


def _refusal(method: str, path: str) -> Answer | None:
    if path != PATH:
        return _sentence("404 Not Found", f"there is nothing here; the metrics are at {PATH}")
    if method not in METHODS:
        status, headers, body = _sentence("405 Method Not Allowed", "metrics are read only: GET")
        return status, [*headers, ("Allow", ", ".join(METHODS))], body
    return None


def _sentence(status: str, text: str) -> Answer:
    return status, [("Content-Type", "text/plain; charset=utf-8")], f"{text}\n".encode()


def _answer(application: WSGIApplication, environ: WSGIEnvironment) -> Answer:
    """What an application answers, as a whole."""
    heads: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        heads.append((status, headers))

    body = b"".join(application(environ, start_response))
    ((status, headers),) = heads
    return status, headers, body


class _Refreshed(Collector):
    """The instruments of a process, brought up to date on its event loop before they are read on another thread."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop

    def describe(self) -> Iterable[Family]:
        """Nothing up front: the loop that would answer is the one that registers this."""
        return ()

    def collect(self) -> Iterable[Family]:
        """Collect every family."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._refresh, done)
        done.wait(REFRESH_S)
        return self._metrics.instruments.collect()

    def _refresh(self, done: threading.Event) -> None:
        self._metrics.refresh()
        self._metrics.tasks(len(asyncio.all_tasks(self._loop)))
        done.set()

"""The page that shows the cluster at work, over plain HTTP: one file, and two things that it asks for.

    GET /              the page
    GET /cluster.json  the cluster as it is now
    GET /watch/NUMBER  the speculation of one request, as server-sent events, until it ends

Read only, one request per connection, nothing from elsewhere. HEAD is answered as GET, without the body.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import cached_property
from importlib import resources
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.settings import address
from specsplit_coordinator.page.watching import Snapshot, sentence

_log = logging.getLogger(__name__)

SCRIPTS = ("cluster.js", "plots.js", "watching.js", "tree.js", "start.js")
"""The parts of the page's script, in order."""
MAX_CONNECTIONS = 64
HEAD_TIMEOUT_S = 10.0
"""A connection on which no whole request has come after this time is closed."""
QUIET_S = 15.0
"""After so long without a snapshot a line without meaning is sent, so that a reader that is gone is noticed."""
METHODS = ("GET", "HEAD")
STOP_S = 0.1
"""How long `stop` lets an answer finish."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Server": "specsplit",
}

AnyResponse = TypeVar("AnyResponse", bound=web.StreamResponse)


class PageFile:
    """The page, put together to one file, and which of its own scripts and styles a browser may run."""

    @cached_property
    def text(self) -> str:
        """The text of the page with its styles and scripts, which are read once."""
        styles, scripts = _read("page.css"), "\n".join(map(_read, SCRIPTS))
        text = _read("page.html").replace("<style></style>", f"<style>\n{styles}</style>")
        return text.replace("<script></script>", f"<script>\n{scripts}</script>")

    @cached_property
    def policy(self) -> str:
        """The Content-Security-Policy of the page."""
        return (
            f"default-src 'none'; script-src {_hashes('script', self.text)}; style-src {_hashes('style', self.text)}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


class PageServer:
    """Listens between `start` and `stop`."""

    def __init__(
        self,
        listen: str,
        cluster: Callable[[], dict[str, Any]],
        watch: Callable[[int], AsyncGenerator[Snapshot, None] | None],
    ) -> None:
        """`cluster` gives the cluster as it is; `watch` the snapshots of the request with a number, None if it is not known."""
        self._listen = listen
        self._cluster = cluster
        self._watch = watch
        self._page = PageFile()
        self._runner: web.AppRunner | None = None
        self.address = ""
        """host:port as bound; empty if nobody listens."""

    async def start(self) -> None:
        """Listen, if the settings say where. Raises InvalidRequest if that cannot be bound."""
        if not self._listen:
            return
        self._runner = _runner(self._application())
        await self._runner.setup()
        try:
            port = await _listen(self._runner, *address.split("web_listen", self._listen))
        except OSError as error:
            await self.stop()
            problem = (
                f"cannot bind {self._listen} ({error.strerror}); is the address this machine's, and the port free?"
            )
            raise InvalidRequest("web_listen", problem) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        _log.info("page on http://%s/", self.address)

    async def stop(self) -> None:
        """End every connection. A second call does nothing."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/", self._send_page)
        application.router.add_get("/cluster.json", self._send_cluster)
        application.router.add_get("/watch/{number}", self._send_snapshots)
        application.router.add_get("/{elsewhere:.*}", self._send_nothing)
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        return self._refusal(request) or await handler(request)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.method not in METHODS:
            return _sentence(405, "there is nothing here but to look at: GET", Allow=", ".join(METHODS))
        if not self._is_for_us(request.headers.get("Host", "")):
            return _sentence(403, "asked under a name that is not this machine's; open the page as localhost")
        if self._connections > MAX_CONNECTIONS:
            return _sentence(503, f"{MAX_CONNECTIONS} connections are open; close some pages")
        return None

    @property
    def _connections(self) -> int:
        return len(self._runner.server.connections) if self._runner is not None and self._runner.server else 0

    def _is_for_us(self, host: str) -> bool:
        """False if a page of somebody else has the browser call here under a name of its own (DNS rebinding)."""
        name = re.sub(r":\d*$", "", host).strip("[]")
        return address.is_loopback(name) or not address.is_loopback(self._listen.rpartition(":")[0].strip("[]"))

    async def _send_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": self._page.policy}
        return _closing(web.Response(text=self._page.text, content_type="text/html", headers=headers))

    async def _send_cluster(self, request: web.Request) -> web.Response:
        return _closing(web.Response(body=json.dumps(self._cluster()).encode(), content_type="application/json"))

    async def _send_nothing(self, request: web.Request) -> web.Response:
        return _sentence(404, "there is nothing here; the page is at /")

    async def _send_snapshots(self, request: web.Request) -> web.StreamResponse:
        number = request.match_info["number"]
        snapshots = self._watch(int(number)) if number.isdecimal() and len(number) < 16 else None
        if snapshots is None:
            return _sentence(404, f"no request has the number {number[:16]}, or it ended long ago")
        response = _closing(web.StreamResponse(headers={"Content-Type": "text/event-stream"}))
        async with aclosing(snapshots), aclosing(_until_end(snapshots)) as lines:
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            async for line in lines:
                await response.write(line)
        return response


def _read(name: str) -> str:
    return resources.files("specsplit_coordinator.page").joinpath(name).read_text("utf-8")


def _runner(application: web.Application) -> web.AppRunner:
    """What listens for the application: signals are the coordinator's, and who asks for what is not logged."""
    logger = _log.getChild("http")
    logger.addFilter(_is_our_fault)
    return web.AppRunner(
        application,
        handle_signals=False,
        access_log=None,
        logger=logger,
        keepalive_timeout=HEAD_TIMEOUT_S,
        shutdown_timeout=STOP_S,
        handler_cancellation=True,
    )


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    """Take connections; the port as bound. Every interface of IPv6 is every one of IPv4 too, which asyncio's own listeners keep apart."""
    host = address.bindable(host)
    if host != "::":
        site = web.TCPSite(runner, host, port)
        await site.start()
        return site.port
    listening = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
    await web.SockSite(runner, listening).start()
    return listening.getsockname()[1]


def _is_our_fault(record: logging.LogRecord) -> bool:
    """False for what is told of a caller that does not speak HTTP: it has been answered, and strangers do not fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


async def _until_end(snapshots: AsyncGenerator[Snapshot, None]) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events, and keep the connection alive where there are none."""
    upcoming: asyncio.Task[Snapshot | None] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(_next(snapshots))
            done, _ = await asyncio.wait({upcoming}, timeout=QUIET_S)
            if not done:
                yield b":\n\n"
                continue
            snapshot, upcoming = upcoming.result(), None
            if snapshot is None:
                return
            yield f"data: {json.dumps(snapshot)}\n\n".encode()
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})


async def _next(snapshots: AsyncGenerator[Snapshot, None]) -> Snapshot | None:
    try:
        return await anext(snapshots, None)
    except SpecsplitError as error:
        return sentence(error)


def _sentence(status: int, text: str, **headers: str) -> web.Response:
    """Answer with a sentence for people."""
    return _closing(web.Response(status=status, text=f"{text}\n", headers=headers))


def _closing(response: AnyResponse) -> AnyResponse:
    """The response, with the headers that all of them have, and as the last on its connection."""
    response.headers.update(HEADERS)
    response.force_close()
    return response


def _hashes(tag: str, text: str) -> str:
    """What Content-Security-Policy calls the inline scripts or styles of a page by."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in found)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

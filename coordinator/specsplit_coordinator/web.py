"""The page that shows the cluster at work, over plain HTTP: one file, and two things that it asks for.

    GET /              the page
    GET /cluster.json  the cluster as it is now
    GET /watch/NUMBER  the speculation of one request, as server-sent events, until it ends

Read only, one request per connection, nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from specsplit.errors import InvalidRequest, SpecsplitError
from specsplit.settings import address
from specsplit_coordinator.watching import Picture, sentence

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 10.0
QUIET_S = 15.0
"""After so long without a picture a line without meaning is sent, so that a reader that is gone is noticed."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def sentence(cls, status: int, text: str) -> Answer:
        """A sentence for people."""
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class Page:
    """The file, and which of its own scripts and styles a browser may run."""

    @cached_property
    def answer(self) -> Answer:
        """The page, read once."""
        text = resources.files("specsplit_coordinator").joinpath("page.html").read_text("utf-8")
        policy = (
            f"default-src 'none'; script-src {_hashes('script', text)}; style-src {_hashes('style', text)}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Answer(200, "text/html; charset=utf-8", text.encode(), (("Content-Security-Policy", policy),))


class Web:
    """Listens between `start` and `stop`."""

    def __init__(
        self,
        listen: str,
        cluster: Callable[[], dict[str, Any]],
        watch: Callable[[int], AsyncGenerator[Picture, None] | None],
    ) -> None:
        """`cluster` gives the cluster as it is; `watch` the pictures of the request with a number, None if it is not known."""
        self._listen = listen
        self._cluster = cluster
        self._watch = watch
        self._page = Page()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""
        """host:port as bound; empty if nobody listens."""

    async def start(self) -> None:
        """Listen, if the settings say where. Raises InvalidRequest if that cannot be bound."""
        if not self._listen:
            return
        host, port = address.split("web_listen", self._listen)
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            problem = (
                f"cannot bind {self._listen} ({error.strerror}); is the address this machine's, and the port free?"
            )
            raise InvalidRequest("web_listen", problem) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{self._server.sockets[0].getsockname()[1]}"
        _log.info("page on http://%s/", self.address)

    async def stop(self) -> None:
        """End every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever called is gone, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # the coordinator leaves
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path, refusal = self._read(head)
        if refusal is not None:
            await _send(writer, refusal)
        elif path.startswith("/watch/"):
            await self._stream(path.removeprefix("/watch/"), writer)
        else:
            await _send(writer, self._answer(path))

    def _read(self, head: str) -> tuple[str, Answer | None]:
        """The path asked for, and why it will not be answered."""
        words = head.partition("\r\n")[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", Answer.sentence(400, "this is no request of HTTP/1.1")
        if words[0] != "GET":
            return "", Answer.sentence(405, "there is nothing here but to look at: GET")
        if not self._is_for_us(_host_in(head)):
            return "", Answer.sentence(403, "asked under a name that is not this machine's; open the page as localhost")
        if len(self._connections) > MAX_CONNECTIONS:
            return "", Answer.sentence(503, f"{MAX_CONNECTIONS} connections are open; close some pages")
        return words[1].partition("?")[0], None

    def _is_for_us(self, host: str) -> bool:
        """False if a page of somebody else has the browser call here under a name of its own (DNS rebinding)."""
        return address.is_loopback(host) or not address.is_loopback(self._listen.rpartition(":")[0].strip("[]"))

    def _answer(self, path: str) -> Answer:
        if path == "/":
            return self._page.answer
        if path == "/cluster.json":
            return Answer(200, "application/json", json.dumps(self._cluster()).encode())
        return Answer.sentence(404, "there is nothing here; the page is at /")

    async def _stream(self, number: str, writer: asyncio.StreamWriter) -> None:
        pictures = self._watch(int(number)) if number.isdecimal() and len(number) < 16 else None
        if pictures is None:
            await _send(writer, Answer.sentence(404, f"no request has the number {number[:16]}, or it ended long ago"))
            return
        writer.write(_head(200, "text/event-stream", ()))
        async with aclosing(pictures), aclosing(_until_end(pictures)) as lines:
            async for line in lines:
                writer.write(line)
                await writer.drain()


async def _until_end(pictures: AsyncGenerator[Picture, None]) -> AsyncGenerator[bytes, None]:
    """Server-sent events; never quiet for long."""
    upcoming: asyncio.Task[Picture | None] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(_next(pictures))
            done, _ = await asyncio.wait({upcoming}, timeout=QUIET_S)
            if not done:
                yield b":\n\n"
                continue
            picture, upcoming = upcoming.result(), None
            if picture is None:
                return
            yield f"data: {json.dumps(picture)}\n\n".encode()
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})


async def _next(pictures: AsyncGenerator[Picture, None]) -> Picture | None:
    try:
        return await anext(pictures, None)
    except SpecsplitError as error:
        return sentence(error)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    length = ("Content-Length", str(len(answer.body)))
    writer.write(_head(answer.status, answer.kind, (length, *answer.headers)) + answer.body)
    with contextlib.suppress(ConnectionError):
        await writer.drain()


def _head(status: int, kind: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        "Cache-Control: no-store",
        "Connection: close",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _host_in(head: str) -> str:
    """The Host header without its port; empty if there is none."""
    found = re.search(r"^host:[ \t]*(\S*)", head, re.IGNORECASE | re.MULTILINE)
    return re.sub(r":\d*$", "", found[1]).strip("[]") if found else ""


def _hashes(tag: str, text: str) -> str:
    """What Content-Security-Policy calls the inline scripts or styles of a page by."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in found)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

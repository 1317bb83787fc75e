"""Debian's chromium without a window, driven over the DevTools protocol by the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

CHROMIUM = shutil.which("chromium")
NOT_HERE = "there is no chromium on this machine; apt-get install chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
WITHIN_S = 60.0


class Tab:
    """One page. `errors` gathers what its script threw and what the browser complained about."""

    def __init__(self, websocket: str) -> None:
        host, _, path = websocket.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self._socket = socket.create_connection((name, int(port)), timeout=WITHIN_S)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self._stream = self._socket.makefile("rb")
        while self._stream.readline().strip():
            pass
        self._ids = count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._ids)
        self._send(json.dumps({"id": number, "method": method, "params": parameters}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, script: str, holds: Callable[[Any], bool] = bool) -> Any:
        """The value of an expression once it `holds`."""
        deadline = time.monotonic() + WITHIN_S
        while not holds(value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"{script} is {value!r}; errors of the page: {self.errors}"
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int = 1000) -> None:
        """Give the page so many pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState", lambda state: state == "complete")

    def press(self, key: str, text: str = "") -> None:
        """A key, down and up."""
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, " ": 32, "Enter": 13}[key]
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def prefer(self, **media: str) -> None:
        """What the user's system asks for, for instance prefers_color_scheme="dark"."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _send(self, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        length = struct.pack(">B", 0x80 | size) if size < 126 else struct.pack(">BH", 0x80 | 126, size)
        if size > 65535:
            length = struct.pack(">BQ", 0x80 | 127, size)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self._socket.sendall(b"\x81" + length + mask + masked)

    def _receive(self) -> bytes:
        """One text message; the browser sends nothing else."""
        data = b""
        while True:
            first, second = self._stream.read(2)
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(self._stream.read(2 if size == 126 else 8), "big")
            data += self._stream.read(size)
            if first & 0x80:
                return data


@contextmanager
def browsing(width: int = 1280, height: int = 1000) -> Iterator[Tab]:
    """A fresh browser with one empty tab."""
    assert CHROMIUM is not None, NOT_HERE
    with tempfile.TemporaryDirectory(prefix="specsplit-chromium-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            tab = Tab(_first_tab(Path(profile) / "DevToolsActivePort"))
            tab.resize(width, height)
            try:
                yield tab
            finally:
                tab.close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own group, made above: the browser and its helpers
            process.wait(10)


def _first_tab(told: Path) -> str:
    """Where to speak to the tab that the browser opened with."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError, IndexError, StopIteration):  # not there yet, or not whole
            port = int(told.read_text().split()[0])
            with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                return next(each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page")
        time.sleep(0.05)
    raise AssertionError("chromium said no DevTools port")

"""gRPC writes what a peer says into notes of its own; ours are not to be mixed up with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAID = '{"level": "error", "message": "forged"}'
SERVER = f"""
import socket
from concurrent.futures import ThreadPoolExecutor
import specsplit
import grpc

def frame(kind, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + (0).to_bytes(4, "big") + payload

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with socket.create_connection(("127.0.0.1", port)) as peer:
    goaway = frame(7, (0).to_bytes(4, "big") + (2).to_bytes(4, "big") + b'\\n{SAID}\\n')
    peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, b"") + goaway + frame(6, b"answered"))
    said = b""
    while b"answered" not in said:
        said += peer.recv(4096) or exit("the server has closed the connection")
server.stop(None).wait()
"""


TAKEN = """
import asyncio, socket
from pathlib import Path
from specsplit.errors import InvalidRequest
from specsplit.rpc import Server
from specsplit.settings import VerifierSettings

async def main(port):
    try:
        await Server(VerifierSettings(model=Path("unused"), listen=f"127.0.0.1:{port}"), "verifier", services=[]).start()
    except InvalidRequest as error:
        print(error)

with socket.create_server(("127.0.0.1", 0)) as taken:
    asyncio.run(main(taken.getsockname()[1]))
"""


def test_grpc_says_nothing_of_a_port_that_is_taken_beside_the_error_that_does() -> None:
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    words = [sys.executable, "-c", TAKEN]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=True)
    assert ran.stdout.startswith("listen: cannot bind 127.0.0.1:")
    assert ran.stderr == ""


@pytest.mark.parametrize(("verbosity", "written"), [(None, False), ("INFO", True)])
def test_a_peer_writes_no_line_into_the_log_unless_grpcs_notes_are_asked_for(
    verbosity: str | None, written: bool
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if verbosity is not None:
        env["GRPC_VERBOSITY"] = verbosity
    ran = subprocess.run(
        [sys.executable, "-c", SERVER], env=env, capture_output=True, text=True, timeout=100, check=True
    )
    assert (SAID in ran.stderr.splitlines()) is written

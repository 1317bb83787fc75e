"""Who passes tokens on, each a process of its own before the same verifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.edge.calls import COMPLETIONS, DECODE, GENERATE, SESSIONS
from benchmarks.processes import process, said
from specsplit.cli.gateway import Gateway, check_installed
from specsplit.client import Client
from specsplit.errors import Unavailable

EMPTY: Final = "empty handler"
COORDINATOR: Final = "coordinator"
VERIFIER: Final = "verifier itself"
GATEWAY: Final = "gateway before a verifier"
_PATIENT: Final = ("--log-level", "warning", "--max-queue", "1000", "--lost-after-ms", "60000")
"""Options of a coordinator that has more to do than it can."""


@dataclass(frozen=True)
class Party:
    """One of them."""

    name: str
    call: str
    address: str
    pid: int


@dataclass(frozen=True)
class Parties:
    """All that are here, in the order of the table."""

    present: list[Party]
    verifier: int
    """Its process."""
    absent: str
    """Why there is no gateway; empty: there is one."""


@contextmanager
def parties(folder: Path) -> Iterator[Parties]:
    """Start them, with the tokenizer of this folder, for the duration of the block."""
    with ExitStack() as stack:
        own = ("--model", str(folder), "--listen", "127.0.0.1:0")
        coordinator = stack.enter_context(process("specsplit", "serve", "coordinator", *own, *_PATIENT))
        address = said(coordinator).rpartition(" ")[2]
        with Client(address) as client:
            client.wait_until_serving(60)
        verifier = stack.enter_context(process("benchmarks.edge.verifier", address, str(folder)))
        behind = said(verifier)
        relay = stack.enter_context(process("benchmarks.edge.relay", behind))
        present = [
            Party(EMPTY, DECODE, said(relay), relay.pid),
            Party(COORDINATOR, GENERATE, address, coordinator.pid),
            Party(VERIFIER, SESSIONS, behind, verifier.pid),
        ]
        try:
            check_installed()
        except Unavailable as error:
            yield Parties(present, verifier.pid, str(error))
            return
        gateway = stack.enter_context(Gateway(behind, "127.0.0.1:0"))
        at = gateway.url.removeprefix("http://").removesuffix("/v1")
        yield Parties([*present, Party(GATEWAY, COMPLETIONS, at, gateway.pid)], verifier.pid, "")

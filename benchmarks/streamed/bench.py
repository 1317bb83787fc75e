"""What a step of many sessions costs the host where another process reads them over gRPC: the rows of `step_overhead` for large batches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import grpc

from benchmarks.context import Context
from benchmarks.drafter_process import drafter
from benchmarks.processes import process, said
from benchmarks.rank import rank, recorded
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import percentile, spread
from benchmarks.streamed.tiny import write_tiny
from specsplit.rpc.edge import Edge
from specsplit.rpc.options import server_options
from specsplit.settings import DrafterSettings, TransportSettings, VerifierSettings
from specsplit.v1 import verifier_pb2_grpc
from specsplit.values import DrafterKind
from specsplit_verifier.edge.service import read_revision
from specsplit_verifier.edge.servicer import VerifierServicer
from specsplit_verifier.edge.updates import Updates
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult

PROMPT: Final = 16
DRAFTS: Final = 64
"""Room in the KV of each session for drafts, in tokens."""
QUICK_BATCH: Final = 4
TEMPERATURES: Final = (0.0, 1.0)
AIMS_MS: Final[Mapping[int, float | str]] = {64: 4.0, 256: ""}
"""Aim for host p50 by batch; none is set for 256."""
PART: Final = 0.75
"""Share of the sessions of a batch: steps in which fewer take part are not counted."""
_ENGINE: Final = ("engine", "listener", "noise")
"""Beginnings of the names of threads that do the engine's work; all others are the edge."""


class Cell(NamedTuple):
    """What is measured side by side with others."""

    batch: int
    drafter: str
    temperature: float


class _Made(NamedTuple):
    steps: list[StepResult]
    tokens: int
    edge_s: float
    """Processor time of the threads that stand between the engine and the wire."""


def rows(context: Context) -> list[Row]:
    """A row for each batch, without a drafter and with one, greedy and sampled."""
    batches = (QUICK_BATCH,) if context.quick else tuple(AIMS_MS)
    settings = DrafterSettings(kind=DrafterKind.NGRAM, max_sessions=max(batches))
    with TemporaryDirectory() as folder, drafter(settings) as ngram:
        return asyncio.run(_measure(context, batches, write_tiny(Path(folder)), {"none": "", "ngram": ngram.address}))


async def _measure(context: Context, batches: Sequence[int], target: Path, drafters: dict[str, str]) -> list[Row]:
    new, repeats = (24, 1) if context.quick else (128, 3)
    cells = [Cell(batch, name, t) for batch in batches for name in drafters for t in TEMPERATURES]
    made: dict[Cell, list[_Made]] = {cell: [] for cell in cells}
    most = max(batches)
    settings = VerifierSettings(
        model=target, random_weights=True, max_sessions=most, kv_tokens=most * (PROMPT + new + DRAFTS)
    )
    async with _served(settings) as (verifier, address):
        steps = recorded(verifier)
        told = "batch {0.batch}, {0.drafter}".format
        for cell, repeat in rounds(context, "step_overhead, streams", cells, repeats, told):
            words = (address, str(cell.batch), str(PROMPT), str(new), str(cell.temperature), drafters[cell.drafter])
            found = await _round(steps, cell.batch, words)
            made[cell] += [found] if repeat else []
    return [_row(cell, found) for cell, found in made.items()]


@asynccontextmanager
async def _served(settings: VerifierSettings) -> AsyncIterator[tuple[Verifier, str]]:
    """A verifier behind a server of its own, and its address."""
    async with rank(settings) as verifier:
        servicer = VerifierServicer(Updates(settings, partial(read_revision, settings)), lambda method: None)
        servicer.verifier = verifier
        edge = Edge("verifier", lambda method: None)
        server = grpc.aio.server(options=server_options(TransportSettings()), interceptors=[edge])
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield verifier, f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


async def _round(steps: list[StepResult], batch: int, words: tuple[str, ...]) -> _Made:
    """Sessions of one caller, from their begin to their end: the steps in which enough took part and no prompt was read."""
    steps.clear()
    with process("benchmarks.streamed.caller", *words) as caller:
        before = edge_s()
        tokens = int(await asyncio.to_thread(said, caller))
        used = edge_s() - before
    enough = [step for step in steps if len(step.sessions) >= PART * batch and not step.prefill_tokens]
    return _Made(enough, tokens, used)


def edge_s() -> float:
    """Processor time of this process so far, but for the engine's threads."""
    engine = [each.native_id for each in threading.enumerate() if each.name.startswith(_ENGINE)]
    return time.process_time() - sum(map(_thread_s, filter(None, engine)))


def _thread_s(number: int) -> float:
    return int(Path(f"/proc/self/task/{number}/schedstat").read_text(encoding="ascii").split()[0]) * 1e-9


def _row(cell: Cell, made: list[_Made]) -> Row:
    steps = [step for each in made for step in each.steps]
    drafted, sessions = [each for each in steps if each.drafted], sum(len(each.sessions) for each in steps)
    host, forward = [each.host_us / 1e3 for each in steps], [each.forward_us / 1e3 for each in steps]
    return {
        "batch": cell.batch, "controller": "goodput", "drafter": f"{cell.drafter}, streams", "temperature": cell.temperature,
        "steps": len(steps), "aim_ms": AIMS_MS.get(cell.batch, ""), "host_p50_ms": percentile(host, 50),
        "host_p90_ms": percentile(host, 90), "forward_p50_ms": percentile(forward, 50), "drafted": len(drafted),
        "drafted_host_p50_ms": percentile([each.host_us / 1e3 for each in drafted], 50) if drafted else "",
        "drafted_tokens_p50": percentile([each.tokens for each in drafted], 50) if drafted else "",
        "accept_length": (sum(each.accepted for each in steps) + sessions) / max(1, sessions),
        "edge_us": spread([each.edge_s / each.tokens * 1e6 for each in made]).median, "first_ms": "",
    }  # fmt: skip

"""The `edge` benchmark: what a token costs the process that passes it on, beside a handler that only passes messages on.

Every part is a process of its own. The verifier has the edges of a real one and no target: a step at every multiple of an interval, of one
token for every session of a batch (`benchmarks.edge.verifier`). The empty handler is grpc.aio's least (`benchmarks.edge.relay`). All stand
before the same verifier and are asked by the same reader, by turns. Processor time is the kernel's count for each process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from benchmarks.context import Context
from benchmarks.edge.folder import write_folder
from benchmarks.edge.loads import BY_SEVERAL, HALF, HALF_BY_SEVERAL, INTERVAL_S, SATURATED, SATURATED_S, Load
from benchmarks.edge.pace import LONGEST_S
from benchmarks.edge.parties import Parties, Party, parties
from benchmarks.edge.processor import wait_idle
from benchmarks.edge.table import COLUMNS, NOTES, Turns, draw, median, rows_of, verdict
from benchmarks.processes import process, said
from benchmarks.runner import rounds

STREAMS: Final = (10, 100, 400)
SECONDS: Final = 1.5
WARM_S: Final = 0.4
REPEATS: Final = 4

Measured: TypeAlias = dict[Load, dict[str, list[dict[str, Any]]]]
"""What each party had of each load, by turns."""


def run(context: Context) -> None:
    """Measure, print, write."""
    streams, seconds, repeats = ((2,), 0.5, 1) if context.quick else (STREAMS, SECONDS, REPEATS)
    with TemporaryDirectory() as folder, parties(write_folder(Path(folder))) as here:
        measure = partial(_by_turns, context, here, seconds, repeats)
        most = Load(streams[-1], SATURATED_S, SATURATED)
        several = Load(streams[-1], INTERVAL_S).by_several(BY_SEVERAL)
        loads = [*(Load(each, INTERVAL_S) for each in streams), several, most]
        found = measure({(load, party): load for load in loads for party in here.present})
        halves = {party: _half(found[most][party.name], most.streams) for party in here.present}
        # Under one name, though each party has its own.
        found |= measure({(Load(most.streams, 0.0, HALF), party): load for party, load in halves.items()})
        apart = {party: load.by_several(HALF_BY_SEVERAL) for party, load in halves.items()}
        found |= measure({(Load(most.streams, 0.0, HALF_BY_SEVERAL), party): load for party, load in apart.items()})
    rows = rows_of(found, here.absent)
    context.finish(
        "edge", "What a token costs the process that passes it on", COLUMNS, rows,
        {"interval_ms": INTERVAL_S * 1e3, "seconds": seconds, "repeats": repeats},
        [verdict(rows), *NOTES],
        partial(draw, rows=rows),
    )  # fmt: skip


def _half(saturated: Turns, streams: int) -> Load:
    """The load that is half of what a party passes on at most."""
    return Load(streams, min(2 * streams / max(1.0, median(saturated, "tokens_s")), LONGEST_S), HALF)


def _by_turns(
    context: Context, here: Parties, seconds: float, repeats: int, cells: Mapping[tuple[Load, Party], Load]
) -> Measured:
    """`cells`: what is called so, and what is asked for."""
    found: Measured = {}
    for (load, party), repeat in rounds(context, "edge", [*cells], repeats, _told):
        asked = cells[load, party]
        figures = _measured(party, asked, seconds if repeat else WARM_S, here.verifier)
        found.setdefault(load, {}).setdefault(party.name, []).extend([figures] if repeat else [])
    return found


def _told(cell: tuple[Load, Party]) -> str:
    return f"{cell[0].label}, {cell[1].name}"


def _measured(party: Party, load: Load, seconds: float, verifier: int) -> dict[str, Any]:
    asked = (str(load.streams), f"{load.step_s:.4f}", str(load.verifiers), str(seconds))
    with process("benchmarks.edge.reader", party.call, party.address, *asked, str(party.pid), str(verifier)) as reader:
        found = json.loads(said(reader)) | {"offered": load.offered}
    wait_idle(party.pid, verifier)
    return found

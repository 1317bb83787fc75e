"""The `members` benchmark: what a cluster of so many idle members costs its coordinator, and what a short request then takes.

The coordinator is a real process. The members report as real ones do, each on a Join stream of its own (`benchmarks.crowd`); they have no
model, and every request has one token. Processor time is the kernel's count for the coordinator's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.context import Context
from benchmarks.plots import panels
from benchmarks.processes import process, said
from benchmarks.ranks.counters import Processor
from benchmarks.report import Row
from benchmarks.spread import spread
from specsplit.client import Client

SIZES = (16, 64, 256)
"""Verifiers, and as many drafters."""
IDLE_S = 20.0
STRETCHES = 5
"""Into which the idle time is cut, to see how much the figure varies."""
SETTLE_S = 3.0
REQUESTS = 100
IDLE_AIM, JOIN_AIM_S = 0.1, 5.0
"""For 256 verifiers and 256 drafters: cores while nothing happens, and processor seconds until all are in."""
COLUMNS = {
    "members": "verifiers + drafters",
    "join_cpu_s": "all join, s of CPU",
    "join_s": "s of time",
    "idle": "idle, cores",
    "told": "short request, ms",
    "request_cpu_ms": "ms of CPU",
}


def _measured(model: Path, size: int, *, quick: bool) -> Row:
    options = ("--model", str(model), "--listen", "127.0.0.1:0", "--log-level", "warning")
    with process("specsplit", "serve", "coordinator", *options) as coordinator:
        address = said(coordinator).rpartition(" ")[2]
        with Client(address) as client:
            client.wait_until_serving(60)
            begun, used = time.perf_counter(), Processor.of([coordinator.pid]).seconds
            with process("benchmarks.crowd", address, str(model), str(size), str(size)) as crowd:
                said(crowd)
                row: Row = {"members": f"{size} + {size}", "join_s": time.perf_counter() - begun}
                row["join_cpu_s"] = Processor.of([coordinator.pid]).seconds - used
                row |= _idle(coordinator.pid, quick=quick)
                return row | _asked(client, coordinator.pid, float(str(row["idle_cores"])), quick=quick)


def _idle(pid: int, *, quick: bool) -> Row:
    settle_s, stretch_s = (0.1, 0.2) if quick else (SETTLE_S, IDLE_S / STRETCHES)
    time.sleep(settle_s)
    cores = [_cores(pid, lambda: time.sleep(stretch_s)) for _ in range(STRETCHES)]
    mean = sum(cores) / STRETCHES
    return {"idle_cores": mean, "idle": f"{mean:.3g} ({min(cores):.3g}..{max(cores):.3g})"}


def _asked(client: Client, pid: int, idle_cores: float, *, quick: bool) -> Row:
    """How long requests take, and the processor time of each beside what the members need."""
    times: list[float] = []

    def ask() -> None:
        for _ in range(5 if quick else REQUESTS):
            begun = time.perf_counter()
            client.generate("x", max_tokens=1)
            times.append((time.perf_counter() - begun) * 1e3)

    cores, taken = _cores(pid, ask), spread(times)
    return {
        "request_ms": taken,
        "told": taken.told(".1f"),
        "request_cpu_ms": max(0.0, cores - idle_cores) * sum(times) / len(times),
    }


def _cores(pid: int, do: Callable[[], object]) -> float:
    """How many cores a process uses while something is done."""
    begun, used = time.perf_counter(), Processor.of([pid]).seconds
    do()
    return (Processor.of([pid]).seconds - used) / (time.perf_counter() - begun)


def run(context: Context) -> None:
    """Measure, print, write."""
    sizes = (2,) if context.quick else SIZES
    rows: list[Row] = []
    with context.progress("members", len(sizes)) as advance:
        for size in sizes:
            rows.append(_measured(context.target, size, quick=context.quick))
            advance(f"{size} + {size}")
    last = rows[-1]
    met = float(str(last["idle_cores"])) <= IDLE_AIM and float(str(last["join_cpu_s"])) <= JOIN_AIM_S

    shown = {"idle_cores": "idle, cores", "join_cpu_s": "all join, s of CPU"}
    context.finish(
        "members", "What idle members cost the coordinator", COLUMNS, rows,
        {"heartbeat_ms": 500, "idle_s": IDLE_S, "requests": REQUESTS},
        [f"The aim at 256 + 256: at most {IDLE_AIM:g} of a core while idle, and all in within {JOIN_AIM_S:g} s of CPU. "
         f"At {last['members']} it is {'met' if met else 'missed'}.",
         "Idle: the mean, and the least and most of five stretches, in brackets.",
         "All are in when every member is registered and every verifier has been told of every drafter.",
         "A request is one token of a verifier that answers at once: the median of some, one after the other, quartiles in brackets. "
         "Members and caller share the machine with the coordinator.",
         "The processor time of a request is the coordinator's, beside what it used while idle."],
        partial(panels, rows=rows, name="members", keys=shown, xlabel="verifiers + drafters"),
    )  # fmt: skip

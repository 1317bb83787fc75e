"""The `edge` benchmark: what a token costs the coordinator that passes it on, beside a handler that only passes messages on.

Every part is a process of its own. The verifier has the edge of a real one and no target: a step every 20 ms, of one token for every
session (`benchmarks.edge.verifier`). The empty handler is grpc.aio's least (`benchmarks.edge.relay`). Both stand in front of the same
verifier and are asked by the same reader, by turns. Processor time is the kernel's count for each process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.context import Context
from benchmarks.edge.calls import DECODE, GENERATE
from benchmarks.edge.pace import INTERVAL_S
from benchmarks.plots import panels
from benchmarks.processes import process, said
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import spread
from specsplit.client import Client

STREAMS: Final = (10, 100, 200, 400)
PATIENT: Final = ("--log-level", "warning", "--max-queue", "1000", "--lost-after-ms", "60000")
"""Options of a coordinator that has more to do than it can."""
SECONDS: Final = 3.0
REPEATS: Final = 3
AIM_US: Final = 60.0
"""Of the coordinator's processor time for a token, with the most streams."""
AIM_RATIO: Final = 1.3
"""Of the coordinator's processor time for a token to the empty handler's, with the fewest streams."""
COLUMNS: Final = {
    "streams": "streams", "offered": "offered, tokens/s",
    "tokens_s": "coordinator, tokens/s", "cpu_us": "us of CPU a token", "a_message": "tokens a message", "late": "delay p50 / p99, ms",
    "empty_tokens_s": "empty handler, tokens/s", "empty_cpu_us": "its us of CPU", "empty_late": "its delay, ms",
    "ratio": "CPU, ratio", "verifier_us": "verifier's edge, us", "calls_us": "with a call for each session",
}  # fmt: skip
_SHOWN: Final = {"cpu_us": "us of CPU a token", "empty_cpu_us": "the empty handler's"}


@dataclass(frozen=True)
class Party:
    """Who passes tokens on."""

    name: str
    call: str
    address: str
    pid: int


@contextmanager
def _parties(context: Context) -> Iterator[tuple[Sequence[Party], int]]:
    """Coordinator and empty handler in front of the same verifier, and the verifier's process."""
    own = ("--model", str(context.target), "--listen", "127.0.0.1:0")
    with process("specsplit", "serve", "coordinator", *own, *PATIENT) as coordinator:
        address = said(coordinator).rpartition(" ")[2]
        with Client(address) as client:
            client.wait_until_serving(60)
        with process("benchmarks.edge.verifier", address, str(context.target)) as verifier:
            behind = said(verifier)
            with process("benchmarks.edge.relay", behind) as relay:
                parties = (
                    Party("coordinator", GENERATE, address, coordinator.pid),
                    Party("empty", DECODE, said(relay), relay.pid),
                )
                yield parties, verifier.pid


def _measured(party: Party, streams: int, seconds: float, verifier: int) -> dict[str, Any]:
    words = (party.call, party.address, str(streams), str(seconds), str(party.pid), str(verifier))
    with process("benchmarks.edge.reader", *words) as reader:
        return json.loads(said(reader))


def _row(streams: int, coordinator: Sequence[dict[str, Any]], empty: Sequence[dict[str, Any]]) -> Row:
    ratios = [mine["cpu_us"][0] / theirs["cpu_us"][0] for mine, theirs in zip(coordinator, empty, strict=True)]
    return {
        "streams": streams, "offered": round(streams / INTERVAL_S), "ratio": spread(ratios).told(".2f"),
        "verifier_us": _median(coordinator, lambda each: each["cpu_us"][1]),
        "calls_us": _median(empty, lambda each: each["cpu_us"][1]),
        "a_message": _median(coordinator, lambda each: each["tokens_a_message"]),
        **_figures(coordinator, ""), **_figures(empty, "empty_"),
    }  # fmt: skip


def _figures(measured: Sequence[dict[str, Any]], prefix: str) -> Row:
    late = (_median(measured, lambda each, key=key: each[key]) for key in ("late_p50_ms", "late_p99_ms"))
    return {
        f"{prefix}tokens_s": round(_median(measured, lambda each: each["tokens_s"])),
        f"{prefix}cpu_us": _median(measured, lambda each: each["cpu_us"][0]),
        f"{prefix}late": " / ".join(f"{each:.3g}" for each in late),
    }


def _median(measured: Sequence[dict[str, Any]], figure: Any) -> float:
    return spread([figure(each) for each in measured]).median


def run(context: Context) -> None:
    """Measure, print, write."""
    sizes, seconds, repeats = ((2,), 0.5, 1) if context.quick else (STREAMS, SECONDS, REPEATS)
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    with _parties(context) as (parties, verifier):
        cells = [(streams, party) for streams in sizes for party in parties]
        told = "{0[0]} streams, {0[1].name}".format
        for (streams, party), repeat in rounds(context, "edge", cells, repeats, told):
            figures = _measured(party, streams, seconds if repeat else 0.5, verifier)
            found.setdefault((streams, party.name), []).extend([figures] if repeat else [])
    rows = [_row(streams, found[streams, "coordinator"], found[streams, "empty"]) for streams in sizes]
    context.finish(
        "edge", "What a token costs the process that passes it on", COLUMNS, rows,
        {"interval_ms": INTERVAL_S * 1e3, "seconds": seconds, "repeats": repeats},
        [f"The aims: at most {AIM_US:g} us of the coordinator's processor for a token at {sizes[-1]} streams, and {AIM_RATIO:g} times the "
         f"empty handler's at {sizes[0]}.",
         "A verifier without a target, whose edge is a real one's, gives every session a token every 20 ms. Tokens for which it is itself "
         "too late are not made, so what comes can be less than what is offered.",
         "The empty handler passes the same verifier's messages on and reads none of them. It takes turns with the coordinator, and the "
         "ratio is the median of those of the turns, quartiles in brackets. All else is the median of the turns.",
         "A verifier's edge behind the coordinator carries all sessions on one stream; behind the empty handler each has a call.",
         "A delay is the time from when a step was due to when its token has been read, which is what verifier, coordinator and reader "
         "take together. All share the machine."],
        partial(panels, rows=rows, name="streams", keys=_SHOWN, xlabel="streams"),
    )  # fmt: skip

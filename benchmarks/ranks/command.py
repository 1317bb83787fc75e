"""`python -m benchmarks ranks`: 4 gloo ranks that share the pocket target; with --soak, under kills and random arrivals."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.context import Context
from benchmarks.ports import free_ports
from benchmarks.prompts import held_out
from benchmarks.ranks.bench import Advance, Cell, Parked, Turns, Wakes, Way, rest, visit, wake
from benchmarks.ranks.group import RankGroup
from benchmarks.ranks.soak import soak
from benchmarks.ranks.table import (
    TURNS,
    WAKES,
    draw_turns,
    draw_wakes,
    parked_note,
    turn_row,
    wake_rows,
    weights_note,
)
from benchmarks.ranks.weights import weights
from benchmarks.runner import begun, parser_of
from specsplit.cli.local import LocalCluster
from specsplit.cli.screen import Screen
from specsplit.errors import SpecsplitError

RANKS = 4
SIZES = (1, 2, 4)
DRAFTERS = ("none", "ngram")
PROMPT, NEW, REPEATS = 64, 48, 3
WAKES_EACH, REST_S, RESTS = 30, 10.0, 3


def main(words: Sequence[str]) -> None:
    """Run what is asked for, print, write; status 1 if the soak found a fault."""
    options = _parser().parse_args(words)
    context = begun(["ranks", *words], Screen(width=160), quick=options.quick, models=options.models)
    try:
        sound = soak(context, RANKS, options.soak, options.seed) if options.soak else _measured(context)
    except SpecsplitError as error:
        sys.exit(f"benchmarks ranks: {error}")
    sys.exit(0 if sound else 1)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("ranks", __doc__, "--quick", "--models")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="requests, kills and revivals at random times")
    parser.add_argument("--seed", type=int, default=0, help="soak: of everything that is drawn")
    return parser


def _measured(context: Context) -> bool:
    by_size = {size: weights(context.target, size) for size in SIZES}
    repeats, wakes_each, rests = (1, 3, 1) if context.quick else (REPEATS, WAKES_EACH, RESTS)
    with _ways(context) as ways:
        cells = [Cell(way.name, drafter, callers) for drafter in DRAFTERS for callers in SIZES for way in ways]
        turns = {cell: Turns() for cell in cells}
        parked, wakes = {way.name: Parked() for way in ways}, {way.name: Wakes() for way in ways}
        with context.progress("ranks", (repeats + 1) * len(cells) + wakes_each * len(ways) + rests) as advance:
            _visit_all(context, ways, turns, repeats, advance)
            _wake_all(ways, wakes, wakes_each, advance)
            for _ in range(rests):
                rest(ways, 2.0 if context.quick else REST_S, list(parked.values()))
                advance("at rest")
    settings: dict[str, object] = {"ranks": RANKS, "prompt": PROMPT, "new": NEW, "prefix_cache": False}
    rows, woken = [turn_row(cell, turns[cell]) for cell in cells], wake_rows(wakes)
    context.finish(
        "ranks", "Ranks of a group that step together", TURNS, rows, settings, [weights_note(by_size), *TURN_NOTES],
        partial(draw_turns, rows=rows),
    )  # fmt: skip
    context.finish(
        "ranks_wake", "A first step from a parked group", WAKES, woken, {"ranks": RANKS}, [parked_note(parked), *WAKE_NOTES],
        partial(draw_wakes, wakes=wakes),
    )  # fmt: skip
    return True


TURN_NOTES = [
    "4 ranks of one group (gloo, one machine, one thread each), and a verifier alone; the pocket target, float32. Everybody shares the "
    "processors named below, so 4 ranks cannot be faster here than one verifier: this shows what a turn is, not what a group is for.",
    "As many requests at once as ranks are to be busy; each is placed on the rank that is least busy, so on one of its own. Busy ranks: "
    "on how many verifiers they were. Without the prefix cache, which would draw requests to where their beginning is known.",
    "Turns/s: forward passes a second, of all ranks together, prompt and wake included. Idle share: of the forwards of all ranks, those "
    "without tokens of the rank's own. Imbalance: tokens of the rank that has most by the mean of all ranks, averaged over turns.",
    "Ways and cells take turns, after a round that warms up; all clusters are there at once.",
]
WAKE_NOTES = [
    "From a request of one token to its answer of one token, as the client sees it: client, coordinator, wake of the ranks, one step of "
    "one token. The two ways take turns. The second request is sent as soon as the first is answered: a group turns 32 times more before "
    "it parks.",
    "A rank tells its own share (specsplit_wake_seconds) only where it had work before the wave was there. The coordinator starts a wave "
    "when it places a session on a parked group, so the wave may be there first.",
]


@contextmanager
def _ways(context: Context) -> Iterator[list[Way]]:
    """A group and a verifier alone, each with a coordinator and a drafter of its own."""
    port = free_ports(1)
    single = {"metrics_listen": f"127.0.0.1:{port}", "prefix_cache": False}
    alone = LocalCluster(context.target, verifiers=1, drafters=["ngram"], verifier=single)
    beside = LocalCluster(context.target, verifiers=0, drafters=["ngram"])
    context.console.print("starting a verifier, and a group of ranks")
    with tempfile.TemporaryDirectory() as logs, alone, beside, alone.client() as one, beside.client() as many:
        group = RankGroup(context.target, RANKS, beside.address, Path(logs), prefix_cache=False)
        with group:
            yield [
                Way(f"group of {RANKS}", many, group.metrics, list(group.pids.values())),
                Way("one alone", one, [f"http://127.0.0.1:{port}/metrics"], [alone.verifiers[0].pid]),
            ]


def _visit_all(context: Context, ways: list[Way], turns: dict[Cell, Turns], repeats: int, advance: Advance) -> None:
    prompts, by_name = held_out(context.target, PROMPT, max(SIZES)).tolist(), {way.name: way for way in ways}
    for repeat in range(repeats + 1):
        for cell, into in turns.items():  # interleaved, so that all meet the machine in every mood
            sink = into if repeat else Turns()
            new = NEW // 4 if context.quick or not repeat else NEW
            visit(by_name[cell.way], cell.drafter, prompts[: cell.callers], new, sink)
            advance(f"{cell.way}, {cell.drafter}, {cell.callers} at once")


def _wake_all(ways: list[Way], wakes: dict[str, Wakes], times: int, advance: Advance) -> None:
    chance = random.Random(0)
    for _ in range(times):
        for way in ways:
            wake(way, chance, wakes[way.name])
            advance(f"waking, {way.name}")

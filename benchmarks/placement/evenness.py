"""How evenly coordinators load the verifiers that they share: the rows, and the table."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from benchmarks.context import Context
from benchmarks.placement.sharing import INTERVAL_S, SAMPLE_S, SESSION_S, SLOWER, Scale, Sharing, all_knowing
from benchmarks.placement.toys import PLACES, TAKEN
from benchmarks.plots import panels
from benchmarks.report import Row

WARM: Final = 0.2
"""The share of the sessions before which loads do not count."""
AIM: Final = 1.1
"""Times what one that knows all has on its worst verifier."""
COLUMNS: Final = {
    "who": "coordinators",
    "worst": "sessions on the worst verifier, of the mean",
    "p99": "on the 99th of 100",
    "more": "worst, of the all-knowing one's",
    "highest": "the worst at any moment",
    "at_home": "placed at home",
    "beyond": "placed beyond max_sessions",
}
QUICK: Final = Scale(20, 40, 2_000)


def loads(samples: Iterator[list[int]]) -> Row:
    """What the worst verifiers have, of the mean: over all samples but the first."""
    worst, p99 = list[float](), list[float]()
    for sessions in samples:
        mean, ordered = statistics.fmean(sessions), sorted(sessions)
        worst.append(ordered[-1] / mean)
        p99.append(ordered[int(0.99 * len(ordered))] / mean)
    first = round(WARM * len(worst))
    return {
        "worst": statistics.fmean(worst[first:]),
        "p99": statistics.fmean(p99[first:]),
        "highest": max(worst[first:]),
    }


class Case(NamedTuple):
    """One row: some coordinators."""

    who: str
    shares: tuple[float, ...]
    homes: bool = True


CASES: Final = (
    *(Case(str(number), (1.0,) * number) for number in (1, 2, 4, 8)),
    Case("8, one has half of the requests", (7.0, *(1.0,) * 7)),
    Case("8, members name no home", (1.0,) * 8, homes=False),
)


def _measured(scale: Scale, case: Case) -> Row:
    sharing = Sharing(scale, case.shares, homes=case.homes)
    row = loads(sharing.run())
    at_home = f"{sharing.at_home / sharing.placed:.0%}" if case.homes else ""
    return {"who": case.who, "at_home": at_home, "beyond": sharing.beyond} | row


def _rows(context: Context, scale: Scale) -> list[Row]:
    """The one that knows all, then the cases; two of them are computed at once, which changes no figure."""
    rows: list[Row] = [{"who": "one that knows all", "at_home": "", "beyond": 0} | loads(all_knowing(scale))]
    spawn = multiprocessing.get_context("spawn")
    with context.progress("placement", len(CASES)) as advance, ProcessPoolExecutor(2, mp_context=spawn) as pool:
        for row in pool.map(partial(_measured, scale), CASES):
            rows.append(row)
            advance(str(row["who"]))
    for row in rows:
        row["more"] = float(str(row["worst"])) / float(str(rows[0]["worst"]))
    return rows


def run(context: Context) -> None:
    """Measure, print, write."""
    scale = QUICK if context.quick else Scale()
    rows = _rows(context, scale)
    eight = float(str(rows[4]["more"]))

    settings: dict[str, object] = {
        "verifiers": scale.verifiers, "drafters": scale.drafters, "sessions": scale.sessions, "places": PLACES,
        "taken": TAKEN, "session_s": SESSION_S, "heartbeat_ms": INTERVAL_S * 1e3,
    }  # fmt: skip
    context.finish(
        "placement", "How evenly coordinators load the verifiers that they share", COLUMNS, rows, settings,
        [f"The aim: the worst verifier of 8 coordinators has at most {AIM - 1:.0%} more than that of one that knows all. "
         f"It has {eight - 1:.1%} more: {'met' if eight <= AIM else 'missed'}.",
         "One that knows all puts every session on the verifier that has the fewest at that moment, and hears of every end at once.",
         f"In virtual time; a figure is the mean over samples every {SAMPLE_S:g} s, without those of the first {WARM:.0%} of the time.",
         f"A drafter reports every {SLOWER * INTERVAL_S:g} s here.",
         "Every coordinator gets as many requests as any other, at random, but in the row that says so."],
        partial(panels, rows=rows, name="who", keys={"worst": COLUMNS["worst"]}),
    )  # fmt: skip

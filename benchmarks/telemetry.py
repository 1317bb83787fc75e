"""The `telemetry` benchmark: tokens per second with traces off and at each level, with metrics on and off, side by side.

A cluster for each way, all of them there at once and taking turns, so that they meet the machine in the same moods. Each is a
coordinator, a verifier and a drafter; spans go to a real OTLP receiver in a process of its own, metrics are scraped once a second.

`--before FOLDER` names a checkout of this project from before it had telemetry: a build with telemetry removed, to hold "off" against.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.processes import process, said
from benchmarks.prompts import held_out
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.scrape import fetched, place_of
from benchmarks.spread import spread
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster

PROMPT, NEW, SESSIONS, REPEATS = 64, 96, 4, 16
OFF = "off"
REMOVED = "removed"
AIM_LEVEL_2 = 0.98
COLUMNS = {
    "way": "telemetry",
    "rate": "tokens/s",
    "spread": "quartiles",
    "of_off": "of off",
    "of_off_spread": "quartiles of the ratio",
}
PACKAGES = ("", "drafter", "verifier", "coordinator")


@dataclass
class Way:
    """One way to run, its cluster and its figures."""

    name: str
    level: int = 0
    metrics: bool = False
    removed: bool = False
    rates: list[float] = field(default_factory=list[float])


WAYS = (
    lambda: Way(OFF),
    lambda: Way("metrics", metrics=True),
    lambda: Way("traces, level 1", level=1),
    lambda: Way("traces, level 2", level=2),
    lambda: Way("traces, level 3", level=3),
    lambda: Way("metrics and traces, level 2", level=2, metrics=True),
)


@contextlib.contextmanager
def _from(checkout: Path | None) -> Iterator[None]:
    """Processes started meanwhile run the code of another checkout."""
    if checkout is None:
        yield
        return
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str((checkout / package).resolve()) for package in PACKAGES)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _cluster(context: Context, way: Way, receiver: str) -> LocalCluster:
    traced: dict[str, object] = {"trace_endpoint": receiver, "trace_level": way.level} if way.level else {}
    measured: dict[str, object] = {"metrics_listen": "127.0.0.1:0"} if way.metrics else {}
    options = {**traced, **measured}
    models = drafts_beside(context.target)
    return LocalCluster(
        context.target, models, drafters=[next(iter(models))], coordinator=options, verifier=options, drafter=options,
        listener=_Scraper().hear if way.metrics else None,
    )  # fmt: skip


class _Scraper:
    """Reads /metrics of every process that says where it is, once a second, for as long as this process runs."""

    def hear(self, name: str, line: str) -> None:
        """A line of a child's output."""
        if url := place_of(line):
            threading.Thread(target=self._scrape, args=(url,), daemon=True).start()

    def _scrape(self, url: str) -> None:
        with contextlib.suppress(OSError):  # its process is over
            while True:
                fetched(url, timeout_s=5)
                time.sleep(1)


def _round(cluster: LocalCluster, prompts: list[list[int]], new: int) -> float:
    """Tokens per second of all prompts at once."""
    with cluster.client() as client, ThreadPoolExecutor(len(prompts)) as pool:
        began = time.perf_counter()
        done = list(pool.map(lambda prompt: client.generate(prompt, max_tokens=new, ignore_eos=True), prompts))
        return sum(len(result.tokens) for result in done) / (time.perf_counter() - began)


def run(context: Context, before: Path | None = None) -> None:
    """Measure, print, write."""
    new, repeats = (32, 2) if context.quick else (NEW, REPEATS)
    prompts = held_out(context.target, PROMPT, SESSIONS).tolist()
    ways = [make() for make in WAYS]
    if before is not None:
        ways.insert(0, Way(REMOVED, removed=True))
    with ExitStack() as stack:
        receiver = said(stack.enter_context(process("benchmarks.telemetry")))
        clusters: list[LocalCluster] = []
        for way in ways:
            with _from(before if way.removed else None):
                clusters.append(stack.enter_context(_cluster(context, way, receiver)))
        told = [way.name for way in ways]
        for number, repeat in rounds(
            context, "telemetry", range(len(ways)), repeats, told.__getitem__, back_and_forth=True
        ):
            rate = _round(clusters[number], prompts, new)
            ways[number].rates += [rate] if repeat else []
    _report(context, ways, before, {"sessions": SESSIONS, "new": new, "repeats": repeats})


def _report(context: Context, ways: list[Way], before: Path | None, settings: dict[str, object]) -> None:
    off = next(way for way in ways if way.name == OFF)
    rows: list[Row] = []
    for way in ways:
        rate, ratio = (
            spread(way.rates),
            spread([mine / theirs for mine, theirs in zip(way.rates, off.rates, strict=True)]),
        )
        rows.append(
            {
                "way": way.name, "rate": rate.median, "rate_spread": rate, "spread": rate.quartiles(".4g"),
                "of_off": ratio.median, "ratio_spread": ratio, "of_off_spread": ratio.quartiles(".3f"),
            }
        )  # fmt: skip
    found = {row["way"]: float(str(row["of_off"])) for row in rows}
    level2 = found["traces, level 2"]
    notes = [
        f"Aim: level 2 costs under 2 %: {1 - level2:.1%}, {'met' if level2 > AIM_LEVEL_2 else 'missed'}.",
        "Ratios are of rounds next to one another in time; a quartile range that spans 1 is noise.",
        f"{SESSIONS} requests at once over the pocket target and a head, `eagle3`; everybody shares the cores.",
    ]
    if before is not None:
        notes.insert(
            1, f"Aim: off is within noise of a build with telemetry removed, which runs at {found[REMOVED]:.3f} of it."
        )

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        panel.boxplot([[m / t for m, t in zip(way.rates, off.rates, strict=True)] for way in ways])
        panel.set_xticks(range(1, len(ways) + 1), [way.name.replace(", ", ",\n") for way in ways], fontsize=7)
        panel.set_ylabel("tokens/s, of off")
        panel.axhline(AIM_LEVEL_2, linestyle=":")

    context.finish("telemetry", "What telemetry costs", COLUMNS, rows, settings, notes, draw)


def _serve() -> None:
    from tests.support.otlp import receiving  # noqa: PLC0415 (only the receiver's process needs it)

    with receiving() as receiver:
        print(receiver.address, flush=True)
        while True:
            time.sleep(1)
            receiver.spans.clear()


if __name__ == "__main__":
    _serve()

"""A real verifier and a real drafter, each a process, with a loopback between them that is delayed; beside them no drafter, by turns.

The pocket models decide what is accepted. Step and expansion are paced, so that the machine has time to spare.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from benchmarks.context import Context
from benchmarks.delay_proxy import delayed
from benchmarks.drafter_process import drafter
from benchmarks.harm import LAW
from benchmarks.plots import lines
from benchmarks.prompts import held_out
from benchmarks.rank import generate, rank, recorded, request
from benchmarks.report import Row
from benchmarks.runner import rounds
from benchmarks.spread import spread
from specsplit.settings import DrafterSettings, VerifierSettings
from specsplit.values import DrafterKind, Endpoint, Sampling
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult

STEPS_MS = (10.0, 30.0, 100.0)
EXPANSION_MS = 5.0
DELAYS_MS = (0.0, 20.0, 40.0, 80.0)
NOBODY = -1.0
"""Stands for no drafter in the place of a delay."""
PROMPT, NEW, COUNT, REPEATS = 64, 96, 2, 5


@dataclass
class Measured:
    """What one delay gave, all repeats together."""

    rates: list[float] = field(default_factory=list)
    """Committed tokens per second, one per repeat."""
    steps: list[StepResult] = field(default_factory=list)


async def _visit(
    verifier: Verifier, made: list[StepResult], at: Endpoint | None, prompts: Sequence[Sequence[int]], into: Measured
) -> None:
    made.clear()
    done = [await generate(verifier, request(prompt, NEW, Sampling(temperature=0.0), at)) for prompt in prompts]
    into.rates.append(sum(len(each.tokens) for each in done) / sum(each.seconds for each in done))
    into.steps += [step for step in made if step.sessions]


async def _measure(context: Context, step_ms: float, drafters: Mapping[float, Endpoint | None]) -> list[Row]:
    repeats = 1 if context.quick else REPEATS
    prompts = held_out(context.target, PROMPT, COUNT).tolist()
    measured: dict[float, Measured] = defaultdict(Measured)
    settings = VerifierSettings(model=context.target, paced_step_base_ms=step_ms)
    async with rank(settings) as verifier:
        made = recorded(verifier)
        # The first round warms up: patience, costs and scores are learnt.
        for delay, repeat in rounds(context, f"distance, step {step_ms:g} ms", [*drafters], repeats, _named):
            await _visit(verifier, made, drafters[delay], prompts, measured[delay] if repeat else Measured())
    return [_row(step_ms, delay, measured) for delay in drafters]


def _named(delay: float) -> str:
    return "no drafter" if delay == NOBODY else f"{delay:g} ms"


def _row(step_ms: float, delay: float, measured: Mapping[float, Measured]) -> Row:
    here, alone = measured[delay], measured[NOBODY]
    shares = spread([rate / beside for rate, beside in zip(here.rates, alone.rates, strict=True)])
    steps = len(here.steps)
    return {
        "step_ms": step_ms, "delay_ms": delay, "delay": _named(delay), "rate": spread(here.rates).median,
        "share": shares.median, "shares": shares,
        "accept_length": 1 + sum(step.accepted for step in here.steps) / steps,
        "waited_ms": sum(step.waited_us for step in here.steps) / 1e3 / steps,
    }  # fmt: skip


COLUMNS = {
    "step_ms": "step, ms", "delay": "away", "rate": "committed tokens/s", "shares": "of no drafter",
    "accept_length": "accept_length", "waited_ms": "waited a step, ms",
}  # fmt: skip
NOTES = (
    f"Real processes and gRPC, paced: an expansion takes {EXPANSION_MS:g} ms. The pocket target with its standalone draft, greedy. "
    f"Away: the delay in one direction, through a TCP proxy. Settings are the defaults: `goodput` decides. {REPEATS} rounds by turns, "
    "behind one that warms up; shares are of no drafter in the same round, as medians with quartiles.",
)


def run(context: Context) -> None:
    """Measure, print, write."""
    steps, delays = (STEPS_MS[:1], DELAYS_MS[::3]) if context.quick else (STEPS_MS, DELAYS_MS)
    settings = DrafterSettings(kind=DrafterKind.STANDALONE, model=context.draft, paced_expansion_base_ms=EXPANSION_MS)
    rows: list[Row] = []
    for step_ms in steps:
        with ExitStack() as stack:
            direct = stack.enter_context(drafter(settings)).address
            proxies = {delay: stack.enter_context(delayed(direct, delay / 1e3)).address for delay in delays}
            drafters = {NOBODY: None, **{delay: Endpoint(at, at) for delay, at in proxies.items()}}
            rows += asyncio.run(_measure(context, step_ms, drafters))
    title = "Tokens/s with a drafter behind a delayed loopback as a share of those without"
    context.finish("distance_loopback", title, COLUMNS, rows, {}, [*NOTES, verdict(rows)], lambda f: draw(f, rows))


def verdict(rows: Sequence[Row]) -> str:
    """Say how many rows hold to the law, and where a drafter was slowest, beside none."""
    beside = [row for row in rows if row["delay_ms"] != NOBODY]
    least = min(beside, key=_share)
    kept = sum(_share(row) >= LAW for row in beside)
    return (
        f"It never costs: {kept} of {len(beside)} rows have {LAW:g} of no drafter's tokens/s or more (the least {_share(least):.3f}, at "
        f"{least['delay']} and steps of {least['step_ms']:g} ms)."
    )


def _share(row: Row) -> float:
    return float(str(row["share"]))


def draw(figure: Figure, rows: Sequence[Row]) -> None:
    """A line for every step."""
    panel = figure.subplots()
    here = [row for row in rows if row["delay_ms"] != NOBODY]
    lines(panel, here, lambda row: f"step {row['step_ms']:g} ms", "delay_ms", "share")
    panel.axhline(1.0, linewidth=0.5, color="black")
    panel.set_xlabel("delay, ms")
    panel.set_ylabel("share of no drafter's tokens/s")
    panel.legend(fontsize=7)

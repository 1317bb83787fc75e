"""The part as `python -m benchmarks fire fuzz` runs it: hostile parties, honest callers beside them, and the rows of its table."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.fire.beside import beside, tell
from benchmarks.fire.ending import POLL_S
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz.corpus import Corpus
from benchmarks.fire.fuzz.draws import Case
from benchmarks.fire.fuzz.ground import Ground, ground
from benchmarks.fire.fuzz.parties import Scene
from benchmarks.fire.fuzz.recording import recorded
from benchmarks.fire.fuzz.storm import Storm
from benchmarks.fire.fuzz.tally import Tally
from benchmarks.fire.leaks import MOST_SWELLING, swellings
from benchmarks.fire.load import Load
from benchmarks.fire.logs import Logs
from benchmarks.fire.mix import Asked, requests
from benchmarks.fire.outcomes import WRONG, Outcome
from benchmarks.fire.samples import RSS, Samples
from benchmarks.fire.verdict import conclude, run_out, settled
from specsplit.values import PlanChanges

HONEST: Final = 2
"""Honest callers."""
BOUND_S: Final = 30.0
"""A request of theirs that is not over by then hangs."""
SAMPLE_S: Final = 1.0
MUST_NOT_BE: Final = (*WRONG, Outcome.UNAVAILABLE, Outcome.EXHAUSTED)
"""Nobody does anything to the processes of honest callers, so none of them is refused, and no answer breaks off."""
_PLAN: Final = PlanChanges(num_steps=5, topk=4, num_draft_tokens=16, wait_budget_us=5_000, draft_ahead=True)
"""All of it, so that what a hostile operator sets means nothing to these requests."""


def run(fire: Fire, seconds: float) -> Findings:
    """Fuzz for so long, or play only the cases again that the run is given."""
    findings, _ = Findings("fuzz"), fire.known  # texts first: it takes torch, and no event loop
    tally, samples = Tally(fire.say), Samples()
    with Logs(fire.folder / "fuzz") as logs:
        with ground(fire, logs) as place:
            load = Load(fire, place.public, HONEST, "honest", _mix(place), place.transport("honest"), BOUND_S)
            load.tally.must_not_be = MUST_NOT_BE
            left = run_out(fire, _stormed(fire, place, logs, load, tally, samples, seconds))
        tally.report(findings)
        conclude(findings, load, logs, left)
    _judge_memory(findings, samples, fire.folder / "fuzz")
    if findings.faults:
        fire.say(replay(fire, tally))
    return findings


def _mix(place: Ground) -> Callable[[random.Random, int, int], Iterator[Asked]]:
    """Requests as any load has them, for drafters that there are."""

    def mixed(chance: random.Random, texts: int, longest: int) -> Iterator[Asked]:
        for each in requests(chance, texts, longest):
            drafter = each.drafter if each.drafter in (*place.children, "none") else None
            yield replace(each, drafter=drafter, plan=_PLAN, resumes=False)

    return mixed


async def _stormed(
    fire: Fire, place: Ground, logs: Logs, load: Load, tally: Tally, samples: Samples, seconds: float
) -> str:
    """What was left when all was over: a session, a page, or a member that is not honest."""
    honest, keeping = place.transport("honest"), samples.keep(lambda: [*place.children.values()], logs, SAMPLE_S)
    if missing := await settled(place.public, honest, 1 + len(place.drafters)):
        return f"before the first message {missing}"
    corpus = await recorded(place, fire.known) if fire.corpus is None else Corpus.read(fire.corpus)
    corpus.write(_corpus_of(fire))
    fire.say(f"honest messages by method: {corpus.counts}")
    storm = Storm(Scene(place, fire.known, corpus, tally), fire.seed, fire.ending)
    async with beside(keeping, tell(fire, seconds, load, lambda: tally.told)):
        async with load:
            await storm.run(seconds, [Case.named(fire.seed, name) for name in fire.only])
            await _one_served(load, storm)
        if not storm.well:
            return ""  # the logs say who has died
        there = await settled(place.public, honest, 1 + len(place.drafters))
        return there or await settled(place.lone, honest, 0)


async def _one_served(load: Load, storm: Storm) -> None:
    """Return once some honest request has ended with its text, however short the storm was, or could not in time."""
    until = time.monotonic() + BOUND_S
    while storm.well and not load.tally.counts[Outcome.SAME] and time.monotonic() < until:
        await asyncio.sleep(POLL_S)


def _judge_memory(findings: Findings, samples: Samples, folder: Path) -> None:
    samples.write(folder / "samples.jsonl")
    swollen, name = swellings(samples), "MiB of the processes at first and at last, and growth in the second half"
    told = {
        life: f"{life.name} {taken[0][1][RSS]:.0f} → {taken[-1][1][RSS]:.0f}" for life, taken in samples.lives.items()
    }
    findings.add(name, "; ".join(f"{each} ({swollen.get(life, 0.0):+.1f})" for life, each in told.items()))
    much = {life.name: grown for life, grown in swollen.items() if grown > MOST_SWELLING}
    findings.must_be_none(
        "memory", [f"{who} grew by {grown:.0f} MiB in the second half" for who, grown in much.items()]
    )


def replay(fire: Fire, tally: Tally) -> str:
    """The command that plays the cases again that are to blame; or, where no single one is, the run that draws the same once more."""
    short = " --short" if fire.context.quick else ""
    again = f"once more: python -m benchmarks fire fuzz --seed {fire.seed}{short}"
    if not tally.blamed:
        return f"no single case is to blame; {again}"
    return " ".join((again, "--corpus", str(_corpus_of(fire)), *(f"--only {name}" for name in tally.blamed)))


def _corpus_of(fire: Fire) -> Path:
    return fire.folder / "fuzz" / "corpus.json"

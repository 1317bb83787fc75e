"""The `beside` benchmark: lookup, a head, and both, in virtual time, with texts that repeat themselves and texts that do not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import torch

from benchmarks.context import Context
from benchmarks.lab.laboratory import Laboratory
from benchmarks.lab.models import ModelSource
from benchmarks.lab.replay import CONTEXT, ReplayProposer
from benchmarks.lab.scenario import DrafterSpec, Scenario
from benchmarks.lab.scenarios import GROUPS
from benchmarks.lab.source import Source
from benchmarks.lab.texts import TextSource
from benchmarks.lab.trace import Header, Level, Trace
from benchmarks.lookup.turn import Turn
from benchmarks.plots import bars
from benchmarks.report import Row
from specsplit.sessions import DecodeRequest
from specsplit.values import Sampling

LEAST: Final = 0.98
"""The least share of the better one's tokens/s that both should have."""
TEMPERATURES: Final = 0.0, 0.8, 1.0
REQUESTS: Final = 24
"""Of every row."""
PROCESSES: Final = 2
PROMPT, ANSWER, RUN = 256, 256, 24
"""Tokens of a prompt and of an answer that are made up, and of what such an answer says in one go, the mean."""
RIGHT: Final = {0.0: 0.8, 0.8: 0.7, 1.0: 0.6}
"""How often the first choice of a made-up drafter is right."""
LEAVES: Final = {0.0: 0.0, 0.8: 0.05, 1.0: 0.1}
"""How often an answer that copies its prompt goes on otherwise, by token."""
PROBABILITIES: Final = (0.6, 0.2, 0.1, 0.05)
WAYS: Final = {"lookup": "lookup", "head": "head", "both": "both"}
COLUMNS: Final = {
    "text": "text", "temperature": "T", "none": "no drafts, tokens/s", "lookup": "lookup", "head": "head", "both": "both",
    "share": "both, of the better", "rests": "lookup rested",
}  # fmt: skip
NOTES: Final = (
    "Virtual time, the same digits every time: steps, and expansions of a head, of an 8B on an H100, `goodput`, one caller. To look up "
    "and merge takes 0.2 ms of the host in a step of a session, of which half is taken for each merge: with two merges it is 0.3 ms.",
    "pocket: the pocket target and its eagle3 head, held-out prompts of 64 tokens and prompts that say 24 tokens eight times. Sampled, the "
    "target does not repeat what it was told, so lookup has little to find.",
    f"made up: prompts of {PROMPT} tokens and answers of {ANSWER}. An answer that copies goes on by turns with new tokens and with some of "
    f"its prompt, {RUN} in the mean each, and leaves what it copies at a token with a chance of "
    f"{', '.join(f'{LEAVES[t]:g} (T = {t:g})' for t in TEMPERATURES)}; the first choice of the drafter is right with one of "
    f"{', '.join(f'{RIGHT[t]:g}' for t in TEMPERATURES)}, whatever the text.",
    "lookup rested: share of the steps with a drafter for which nothing was looked up, since that brought less than it took.",
)


class MadeUp(TextSource):
    """Texts that are made up, and a drafter whose first choice is right by chance, drawn on the place."""

    def __init__(self, turns: Sequence[Turn], right: float) -> None:
        super().__init__(turns)
        self._texts = [(*turn.prompt, *turn.output) for turn in turns]
        header = Header("made up", "made up", "standalone", by_depth=False)
        self._trace = Trace(header, [_levels(number, right) for number in range(len(turns))])

    def proposer(self, spec: DrafterSpec) -> ReplayProposer:
        """The drafter, as the trace has it, along these texts."""
        return ReplayProposer(self._trace, spec.kind, self._texts)

    def requests(self, scenario: Scenario) -> list[DecodeRequest]:
        """The requests of these texts, each with its number for a seed."""
        return [
            replace(request, sampling=Sampling(scenario.temperature, seed=number))
            for number, request in enumerate(super().requests(scenario))
        ]


def _levels(number: int, right: float) -> dict[int, list[Level]]:
    drawn = random.Random(f"drafter {number}")
    return {
        PROMPT - 1 + place: [Level(0 if drawn.random() < right else -1, PROBABILITIES)] for place in range(ANSWER + 1)
    }


def turn(number: int, leaves: float, *, copies: bool) -> Turn:
    """Make a prompt, and an answer that copies some of it between new tokens, or says nothing that was said before."""
    drawn = random.Random(f"text {number}")
    fresh = iter(drawn.sample(range(CONTEXT), PROMPT + ANSWER))
    prompt = [next(fresh) for _ in range(PROMPT)]
    answer: list[int] = []
    copied: int | None = None
    while len(answer) < ANSWER:
        if drawn.random() < 1 / RUN:
            copied = drawn.randrange(PROMPT) if copies and copied is None else None
        elif copied is not None and (copied >= PROMPT or drawn.random() < leaves):
            copied = drawn.randrange(PROMPT)
        answer.append(next(fresh) if copied is None else prompt[copied % PROMPT])
        copied = None if copied is None else copied + 1
    return Turn(tuple(prompt), tuple(answer))


def cases(models: Path, requests: int) -> list[tuple[str, float, Source, Sequence[Scenario]]]:
    """(text, temperature, source, the scenario without drafts, with lookup, with a head, with both) of every row."""
    named: dict[tuple[str, float], list[Scenario]] = {}
    for scenario in GROUPS["beside"]:
        if scenario.name.startswith("8B"):
            name = scenario.name.removeprefix("8B, ")
            named.setdefault((name, scenario.temperature), []).append(replace(scenario, requests=requests))
    pocket = ModelSource(models)
    found: list[tuple[str, float, Source, Sequence[Scenario]]] = []
    for (text, temperature), ways in named.items():
        found.append((f"pocket, {text}", temperature, pocket, ways))
    for copies in (False, True):
        for temperature in TEMPERATURES:
            ways = named["held out", temperature]
            turns = [turn(number, LEAVES[temperature], copies=copies) for number in range(requests)]
            text = f"made up, {'copies its prompt' if copies else 'says nothing again'}"
            found.append((text, temperature, MadeUp(turns, RIGHT[temperature]), ways))
    return found


def measured(models: Path, requests: int, number: int) -> Row:
    """Run the ways of one row, by its number."""
    torch.set_num_threads(1)
    text, temperature, source, ways = cases(models, requests)[number]
    row: Row = {"text": text, "temperature": temperature}
    rests = looked = 0
    for name, scenario in zip(("none", *WAYS), ways, strict=True):
        ledger = Laboratory(scenario, source).run()
        row[name] = sum(len(entry.tokens) for entry in ledger.entries) / ledger.busy_s
        rests, looked = (
            sum(getattr(step.drafts, count) for step in ledger.steps) for count in ("lookup_rests", "lookups")
        )
    row["share"] = float(str(row["both"])) / max(float(str(row["lookup"])), float(str(row["head"])))
    row["rests"] = rests / max(1, rests + looked)
    return row


def run(context: Context) -> None:
    """Run all, print, write."""
    requests, rows = 2 if context.quick else REQUESTS, list[Row]()
    count = len(cases(context.models, requests))
    with (
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool,
        context.progress("beside", count) as advance,
    ):
        for row in pool.map(partial(measured, context.models, requests), range(count)):
            rows.append(row)
            advance(f"{row['text']}, T={row['temperature']:g}")
    kept = sum(float(str(row["share"])) >= LEAST for row in rows)
    verdict = (
        f"Both should have {LEAST:g} of the better one at least, and more than it has where texts repeat themselves: {kept} of {len(rows)} "
        f"rows have {LEAST:g}."
    )
    draw = partial(bars, rows=rows, name="{text}".format_map, series=WAYS, ylabel="tokens/s, virtual time")
    context.finish(
        "beside", "Lookup beside a head", COLUMNS, rows, {"target": "pocket, and none"}, [verdict, *NOTES], draw
    )

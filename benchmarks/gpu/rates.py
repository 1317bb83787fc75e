"""Tokens per second at batch 1 as a caller sees them: with each drafter, with none, and of transformers' `generate` on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from benchmarks.gpu.job import Job
from benchmarks.plain import Generate, generators_on
from benchmarks.prompts import held_out
from benchmarks.spread import spread
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster
from specsplit.client import Client

PROMPT = 64
ALONE, PLAIN = "specsplit, no drafter", "generate"
WIND_UP_S = 10.0
"""What it takes to end the processes, and to say what was found."""


class Made(NamedTuple):
    """One text that was generated."""

    tokens: list[int]
    seconds: float
    accept_length: float | None
    """None where the way does not tell."""


Way = Callable[[list[int], int, float, int], Made]
"""Given a prompt, the number of new tokens, a temperature and a seed."""


@dataclass
class Rates:
    """What one way gave at one temperature."""

    per_s: list[float] = field(default_factory=list)
    """Tokens per second, one for each round over all prompts."""
    lengths: list[float] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)
    """By prompt; the latest."""


Cells = dict[tuple[str, float], Rates]
"""By way and temperature."""


def rates(job: Job) -> None:
    """Measure all ways, interleaved, for as many rounds as there is time for."""
    models = drafts_beside(job.target)
    kinds = [kind for kind in job.scale.kinds if kind in models or not kind.needs_model]
    for kind in set(job.scale.kinds) - set(kinds):
        job.findings.skipped(kind.value, f"there is no model for it beside {job.target}")
    cluster = LocalCluster(
        job.target,
        models,
        drafters=kinds,
        verifier={"inflate_layers": job.scale.layers, **job.placed},
        drafter=dict(job.placed),
        start_timeout_s=max(1.0, job.left_s / 2),
    )
    with cluster, cluster.client() as client:
        ways = {ALONE: _ours(client, "none")} | {
            f"specsplit, {kind.value}": _ours(client, kind.value) for kind in kinds
        }
        dtype = torch.bfloat16 if job.dtype == "bfloat16" else torch.float32
        theirs = generators_on(job.device, dtype, job.target, job.models / "draft", job.scale.layers)
        _tell(job, _measure(job, ways | {name: _theirs(call) for name, call in theirs.items()}))


def _ours(client: Client, drafter: str) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        started = time.perf_counter()
        done = client.generate(
            prompt, max_tokens=new, temperature=temperature, seed=seed, ignore_eos=True, drafter=drafter
        )
        seconds = time.perf_counter() - started
        return Made(list(done.tokens), seconds, None if drafter == "none" else done.speculation.accept_length)

    return way


def _theirs(call: Generate) -> Way:
    def way(prompt: list[int], new: int, temperature: float, seed: int) -> Made:
        tokens, seconds, _ = call(prompt, new, temperature, seed)
        return Made(tokens, seconds, None)

    return way


def _measure(job: Job, ways: dict[str, Way]) -> Cells:
    prompts = held_out(job.target, PROMPT, job.scale.prompts).tolist()
    cells: Cells = {(name, t): Rates() for t in job.scale.temperatures for name in ways}
    for name, t in cells:
        _round(ways[name], prompts[:1], job.scale.new // 3, t, Rates())  # warms up
    for done in range(job.scale.rounds):
        for (name, t), into in cells.items():
            if job.left_s < WIND_UP_S:
                job.findings.skipped(
                    f"round {done + 1} of {job.scale.rounds} from {name}, T={t:g} on", "the time was over"
                )
                return cells
            _round(ways[name], prompts, job.scale.new, t, into)
    return cells


def _round(way: Way, prompts: list[list[int]], new: int, temperature: float, into: Rates) -> None:
    tokens, seconds = 0, 0.0
    for number, prompt in enumerate(prompts):
        made = way(prompt, new, temperature, number)
        into.texts[number] = made.tokens
        into.lengths += [] if made.accept_length is None else [made.accept_length]
        tokens, seconds = tokens + len(made.tokens), seconds + made.seconds
    into.per_s.append(tokens / seconds)


def _tell(job: Job, cells: Cells) -> None:
    medians = {cell: spread(found.per_s).median for cell, found in cells.items() if found.per_s}
    for (name, t), rate in medians.items():
        what, found = f"{name}, T={t:g}", cells[name, t]
        job.findings.figures_of(what, "tokens/s", found.per_s)
        for other in (ALONE, PLAIN):
            if name != other and (other, t) in medians:
                job.findings.figure(what, f"times {other}", rate / medians[other, t])
        if found.lengths:
            job.findings.figures_of(what, "accept_length", found.lengths)
        if t == 0 and name != PLAIN and (PLAIN, t) in medians:
            texts = cells[PLAIN, t].texts
            same = sum(found.texts[number] == text for number, text in texts.items())
            job.findings.figure(what, "texts as generate's", same / len(texts), "of them")

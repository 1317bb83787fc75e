"""Tokens per second at batch 1 as a caller sees them: with each drafter, with none, and of transformers' `generate` on the same device."""

from __future__ import annotations

import torch

from benchmarks.gpu.job import Job
from benchmarks.plain import generators_on
from benchmarks.prompts import held_out
from benchmarks.spread import spread
from benchmarks.ways import ALONE, Measured, Way, ours, theirs
from specsplit.cli.folders import drafts_beside
from specsplit.cli.local import LocalCluster

PROMPT = 64
PLAIN = "generate"
WIND_UP_S = 10.0
"""What it takes to end the processes, and to say what was found."""


Cells = dict[tuple[str, float], Measured]
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
        ways = {ALONE: ours(client, "none")} | {f"specsplit, {kind.value}": ours(client, kind.value) for kind in kinds}
        dtype = torch.bfloat16 if job.dtype == "bfloat16" else torch.float32
        plain = generators_on(job.device, dtype, job.target, job.models / "draft", job.scale.layers)
        _tell(job, _measure(job, ways | {name: theirs(call) for name, call in plain.items()}))


def _measure(job: Job, ways: dict[str, Way]) -> Cells:
    prompts = held_out(job.target, PROMPT, job.scale.prompts).tolist()
    cells: Cells = {(name, t): Measured() for t in job.scale.temperatures for name in ways}
    for name, t in cells:
        Measured().visit(ways[name], prompts[:1], job.scale.new // 3, t)  # warms up
    for done in range(job.scale.rounds):
        for (name, t), into in cells.items():
            if job.left_s < WIND_UP_S:
                job.findings.skipped(
                    f"round {done + 1} of {job.scale.rounds} from {name}, T={t:g} on", "the time was over"
                )
                return cells
            into.visit(ways[name], prompts, job.scale.new, t)
    return cells


def _tell(job: Job, cells: Cells) -> None:
    medians = {cell: spread(found.rates).median for cell, found in cells.items() if found.rates}
    for (name, t), rate in medians.items():
        what, found = f"{name}, T={t:g}", cells[name, t]
        job.findings.figures_of(what, "tokens/s", found.rates)
        for other in (ALONE, PLAIN):
            if name != other and (other, t) in medians:
                job.findings.figure(what, f"times {other}", rate / medians[other, t])
        if found.lengths and name != ALONE:
            job.findings.figures_of(what, "accept_length", found.lengths)
        if t == 0 and name != PLAIN and (PLAIN, t) in medians:
            plain = cells[PLAIN, t]
            job.findings.figure(what, "texts as generate's", found.same_as(plain) / len(plain.texts), "of them")

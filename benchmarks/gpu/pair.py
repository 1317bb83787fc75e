"""A verifier and a drafter, two processes on the one device over loopback gRPC, looked at step by step.

The *host gap* between two steps of a session is the time from the beginning of the one to the beginning of the other
(`StepResult.started`), less the forward of the one (`StepResult.forward_us`): picks, the walk, moved KV, the commit, messages, events, the
choice of the next step and, where the verifier waits for its drafter, the wait. Steps that read prompt are left out. After a *hit* nothing
has to come over the wire first; gaps in which the verifier waited all the same stand in a figure of their own.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.drafter_process import drafter as process_of
from benchmarks.gpu.job import Job
from benchmarks.lab.ledger import covered_s
from benchmarks.prompts import held_out
from benchmarks.rank import Generated, generate, rank, recorded, request
from benchmarks.spread import percentile
from specsplit.cli.folders import drafts_beside
from specsplit.values import Endpoint, Sampling
from specsplit_verifier.edge.verifier import Verifier
from specsplit_verifier.records.step import StepResult

PROMPT = 64
ALONE = "no drafter"
HIT, HIT_WAITED, MISS, PLAIN = (
    "host gap after a hit, without waiting",
    "host gap after a hit, waiting",
    "host gap after a miss",
    "host gap",
)


def pair(job: Job) -> None:
    """Measure the verifier alone, then with one drafter after the other."""
    asyncio.run(_pair(job))


async def _pair(job: Job) -> None:
    models = drafts_beside(job.target)
    async with rank(job.verifier(job.target, inflate_layers=job.scale.layers)) as verifier:
        made = recorded(verifier)
        await _visit(job, verifier, made, ALONE, None)
        for kind in job.scale.pairs:
            if job.left_s < 10:
                job.findings.skipped(kind.value, "the time of the part was over")
            elif kind.needs_model and kind not in models:
                job.findings.skipped(kind.value, f"there is no model for it beside {job.target}")
            else:
                with process_of(job.drafter(kind, models.get(kind))) as endpoint:
                    await _visit(job, verifier, made, kind.value, endpoint)


async def _visit(job: Job, verifier: Verifier, made: list[StepResult], name: str, drafter: Endpoint | None) -> None:
    """Texts by one drafter: one that warms up, then as many rounds as there is time for."""
    prompts = held_out(job.target, PROMPT, job.scale.prompts).tolist()
    await _write(verifier, prompts[:1], job.scale.new // 3, drafter)
    made.clear()
    texts: list[Generated] = []
    for _ in range(job.scale.rounds):
        if not texts or job.left_s > 10:
            texts += await _write(verifier, prompts, job.scale.new, drafter)
    _tell(job, name, texts, made)
    if job.device.startswith("cuda"):
        await _profile(job, verifier, made, name, prompts[:1], drafter)


async def _write(
    verifier: Verifier, prompts: Sequence[Sequence[int]], new: int, drafter: Endpoint | None
) -> list[Generated]:
    return [await generate(verifier, request(each, new, Sampling(), drafter)) for each in prompts]


def _tell(job: Job, name: str, texts: Sequence[Generated], made: Sequence[StepResult]) -> None:
    findings = job.findings
    findings.figures_of(name, "tokens/s", [len(text.tokens) / text.seconds for text in texts])
    steps = [step for step in made if step.sessions and not step.prefill_tokens]
    findings.figures_of(name, "forward", [step.forward_us / 1e3 for step in steps], "ms")
    findings.figures_of(name, "tokens of a step", [float(step.tokens) for step in steps])
    for kind, gaps in gaps_of(made).items():
        findings.figures_of(name, kind, gaps, "us")
        findings.figure(name, f"{kind}, 90th percentile", percentile(gaps, 90), "us")
    if name != ALONE:
        hits, misses = sum(step.hits for step in steps), sum(step.misses for step in steps)
        findings.figure(name, "hits", hits / max(1, hits + misses), "of commits")
        findings.figure(name, "accept_length", 1 + sum(step.accepted for step in steps) / len(steps))
        trips = [seconds * 1e3 for step in made for seconds in step.drafts.round_trips_s]
        if trips:
            findings.figures_of(name, "round trip, commit to first grow", trips, "ms")


def gaps_of(made: Sequence[StepResult]) -> dict[str, list[float]]:
    """Microseconds of every host gap, by what the step before it was."""
    found: dict[str, list[float]] = {}
    for before, after in pairwise(made):
        if before.sessions and after.sessions and not (before.prefill_tokens or after.prefill_tokens):
            whole_us = (after.started - before.started) * 1e6
            found.setdefault(_kind(before, after), []).append(whole_us - before.forward_us)
    return found


def _kind(before: StepResult, after: StepResult) -> str:
    if before.misses:
        return MISS
    if before.hits:
        return HIT_WAITED if after.waited_us > 0 else HIT
    return PLAIN


async def _profile(
    job: Job, verifier: Verifier, made: list[StepResult], name: str, prompts: Sequence[Sequence[int]], drafter: Endpoint | None
) -> None:  # fmt: skip
    """Write a short text more, while the profiler notes when the device computes for this process."""
    made.clear()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            await _write(verifier, prompts, job.scale.new // 3, drafter)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(trace))
            spans = list(device_spans(json.loads(trace.read_text())["traceEvents"]))
    except RuntimeError as error:
        job.findings.skipped(f"{name}, share of the time in which the device computes", f"the profiler failed: {error}")
        return
    if not spans:
        why = "the profiler saw no kernels (it needs CUPTI)"
        job.findings.skipped(f"{name}, share of the time in which the device computes", why)
        return
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    job.findings.figure(name, "device at work for the verifier", covered_s(spans) / whole, "of the time")
    job.findings.figure(name, "device idle, by step", (whole - covered_s(spans)) / max(1, len(made)), "us")


def device_spans(events: Sequence[dict[str, object]]) -> Iterator[tuple[float, float]]:
    """(start, end) of everything that a device did, in microseconds, out of a Chrome trace."""
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            start = float(str(event["ts"]))
            yield start, start + float(str(event["dur"]))

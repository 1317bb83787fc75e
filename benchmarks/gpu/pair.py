"""A verifier and a drafter, two processes on the one device over loopback gRPC, looked at step by step.

The *host gap* between two steps of a session is the time from the beginning of the one to the beginning of the other
(`StepResult.started`), less the forward of the one (`StepResult.forward_us`): picks, the walk, moved KV, the commit, messages, events, the
choice of the next step and, where the verifier waits for its drafter, the wait. Steps that read prompt are left out. After a *hit* nothing
has to come over the wire first; gaps in which the verifier waited all the same stand in a figure of their own.

On a GPU all of it is measured twice, without MPS (NVIDIA's Multi-Process Service) and with it. For that a control daemon is started
here, with a folder of pipes of its own, which ends with the part: no setting of the card is changed, and no daemon of others is used
or ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.drafter_process import drafter as process_of
from benchmarks.gpu.child import Order, run
from benchmarks.gpu.job import Job
from benchmarks.gpu.trace import profiling, seen
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


PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable by which programs of CUDA find the daemon."""
OWN = "SPECSPLIT_BENCHMARK_MPS"
"""Set for the process that measures with the daemon that was started here."""
WITH_MPS = "with MPS"
CONTROL = "nvidia-cuda-mps-control"
LEAST_S = 20.0
QUIT_S = 8.0
"""Left of the part's time when the second process is to be done, so that the daemon is told to end."""


def pair(job: Job) -> None:
    """Measure the verifier alone, then with one drafter after the other; on a GPU once more with MPS."""
    suffix = f", {WITH_MPS}" if OWN in os.environ else ""
    again = job.device.startswith("cuda") and not suffix
    why = obstacle() if again else None
    if why is not None:
        job.findings.skipped(WITH_MPS, why)
    first = replace(job, until=time.monotonic() + job.left_s / 2) if again and why is None else job
    asyncio.run(_pair(first, suffix))
    if again and why is None:
        with_mps(job)


def obstacle() -> str | None:
    """Why MPS cannot be compared with; None: it can be tried."""
    if PIPES in os.environ or Path("/tmp/nvidia-mps/control").exists():
        return "a control daemon runs here already, so all that was measured was measured with MPS"
    return None if shutil.which(CONTROL) else f"there is no {CONTROL} here"


def with_mps(job: Job) -> None:
    """Have a process of its own measure once more: programs find the daemon when they first use the device."""
    if job.left_s < LEAST_S:
        job.findings.skipped(WITH_MPS, "the time of the part was over")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "findings.jsonl"
        try:
            with daemon(Path(folder)):
                models, until = str(job.models), job.until - QUIT_S
                told = dict(job.settings), job.attention
                found = run(Order("pair", job.device, job.scale.name, models, until, str(path), *told))
        except (OSError, subprocess.SubprocessError) as error:
            job.findings.skipped(WITH_MPS, f"{CONTROL} cannot be started: {_said(error)}")
            return
    for figure in found.figures:
        job.findings.figures.append(figure)
        job.findings.tell("figure", asdict(figure))
    for skip in found.skips:
        job.findings.skipped(skip.what, skip.why, broke=skip.broke)


@contextmanager
def daemon(folder: Path) -> Iterator[None]:
    """Run a control daemon of MPS whose pipes and logs are in a folder. Raises OSError and SubprocessError if it does not start."""
    pipes, logs = folder / "pipes", folder / "logs"
    pipes.mkdir()
    logs.mkdir()
    own = {PIPES: str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs), OWN: "1"}
    with _environment(own):
        subprocess.run([CONTROL, "-d"], check=True, timeout=10, capture_output=True, text=True)
        try:
            yield
        finally:
            # It is asked by its own pipes, so no other one hears it.
            subprocess.run([CONTROL], input="quit\n", check=False, timeout=20, capture_output=True, text=True)


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del os.environ[name]


def _said(error: OSError | subprocess.SubprocessError) -> str:
    return (getattr(error, "stderr", None) or str(error)).strip()


async def _pair(job: Job, suffix: str) -> None:
    models = drafts_beside(job.target)
    async with rank(job.verifier(job.target, inflate_layers=job.scale.layers)) as verifier:
        made = recorded(verifier)
        await _visit(job, verifier, made, ALONE + suffix, None)
        for kind in job.scale.pairs:
            if job.left_s < 10:
                job.findings.skipped(kind.value, "the time of the part was over")
            elif kind.needs_model and kind not in models:
                job.findings.skipped(kind.value, f"there is no model for it beside {job.target}")
            else:
                with process_of(job.drafter(kind, models.get(kind))) as endpoint:
                    await _visit(job, verifier, made, kind.value + suffix, endpoint)


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
    if not name.startswith(ALONE):
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
        with profiling(job.device) as profiler:
            await _write(verifier, prompts, job.scale.new // 3, drafter)
        spans = [(span.start, span.end) for span in seen(profiler, job.device)]
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

"""One replay of a captured forward, kernel by kernel: what they are, how often and how long, and how long the device waits between them.

What is looked at is a step of one token (`benchmarks.gpu.verify` says what a step is), so that the copies to the device and the kernels
that pick the token are in it. In a dry run the operators of an eager step stand for kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.gpu.budget import ATTENTION, ELEMENTWISE, FLOOR, HOST, OTHERS, PRODUCTS, STEP
from benchmarks.gpu.findings import Kernel
from benchmarks.gpu.job import Job
from benchmarks.gpu.trace import Span, traced
from benchmarks.gpu.verify import Measurement, loaded
from benchmarks.lab.ledger import covered_s
from specsplit.values import Sampling

TARGET = "8B"
REPEATS = 5
"""Steps that are looked at, one by one, of which the shortest is told of."""
SHOWN = 30
"""Kernels that are told of by name; the others are one line."""
_KINDS = (
    (
        ATTENTION,
        re.compile(
            r"attend|attention|flashinfer|fmha|flash_fwd|Batch(Prefill|Decode)|MergeState|^merge$|softmax",
            re.IGNORECASE,
        ),
    ),
    (
        PRODUCTS,
        re.compile(r"gemm|gemv|cutlass|nvjet|xmma|cublas|splitk|dot_kernel|linear|::(add|b|baddb)?mm$", re.IGNORECASE),
    ),
    (
        OTHERS,
        re.compile(
            r"mem(cpy|set)|::copy_$|^_(best|largest|weigh|bar|walk|compact)_?|top_?k|sort|argmax", re.IGNORECASE
        ),
    ),
)
"""The first that finds itself in a kernel's name. What is left is elementwise."""


def profile(job: Job) -> None:
    """Look at one step of the 8B target, and say what its time is spent on."""
    runner = loaded(job, TARGET, TARGET)
    measured = Measurement(job, TARGET, runner)
    measured.prefill()
    step, step_s = measured.step(1, Sampling()), measured.measure(1, Sampling())
    try:
        found = [traced(lambda: runner.run(step), job.device) for _ in range(REPEATS)]
    except RuntimeError as error:
        job.findings.skipped("a replay, kernel by kernel", f"the profiler failed: {error}")
        return
    seen = [spans for spans in found if spans]
    if not seen:
        job.findings.skipped("a replay, kernel by kernel", "the profiler saw no kernels (it needs CUPTI)")
        return
    shortest = min(seen, key=_extent_us)
    for kernel in kernels_of(shortest):
        job.findings.kernel(kernel)
    _tell(job, shortest, step_s * 1e3, measured.floor_s() * 1e3)


def _tell(job: Job, spans: Sequence[Span], step_ms: float, floor_ms: float) -> None:
    covered_ms = covered_s([(span.start, span.end) for span in spans]) / 1e3
    gaps = gaps_of(spans)
    job.findings.figure(TARGET, "kernels and copies of a step", len(spans))
    job.findings.figure(TARGET, "gaps between them", sum(gaps), "us")
    job.findings.figure(TARGET, "largest gap", max(gaps, default=0.0), "us")
    budget = {FLOOR: floor_ms, **kinds_of(spans), HOST: max(0.0, step_ms - covered_ms), STEP: step_ms}
    for name, value in budget.items():
        job.findings.figure(TARGET, name, value, "ms")


def kind_of(name: str) -> str:
    """What a kernel is for, by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), ELEMENTWISE)


def kinds_of(spans: Sequence[Span]) -> dict[str, float]:
    """Milliseconds of the kernels of each kind."""
    took: dict[str, float] = dict.fromkeys((PRODUCTS, ELEMENTWISE, ATTENTION, OTHERS), 0.0)
    for span in spans:
        took[kind_of(span.name)] += span.end - span.start
    return {kind: us / 1e3 for kind, us in took.items()}


def kernels_of(spans: Sequence[Span]) -> list[Kernel]:
    """Kernels by name, those that take the most time first; behind SHOWN of them the others are one."""
    names = dict[str, list[float]]()
    for span in spans:
        names.setdefault(span.name, []).append(span.end - span.start)
    whole = sum(map(sum, names.values())) or 1.0
    ordered = sorted(names.items(), key=lambda item: -sum(item[1]))
    made = [Kernel(name, kind_of(name), len(took), sum(took), sum(took) / whole) for name, took in ordered[:SHOWN]]
    rest = [each for _, took in ordered[SHOWN:] for each in took]
    if rest:
        made.append(Kernel(f"{len(ordered) - SHOWN} others", "", len(rest), sum(rest), sum(rest) / whole))
    return made


def gaps_of(spans: Sequence[Span]) -> list[float]:
    """Microseconds between one thing that the device does and the next, where nothing else of it runs."""
    reached, gaps = float("-inf"), list[float]()
    for before, after in pairwise(sorted(spans)):
        reached = max(reached, before.end)
        if after.start > reached:
            gaps.append(after.start - reached)
    return gaps


def _extent_us(spans: Sequence[Span]) -> float:
    return max(span.end for span in spans) - min(span.start for span in spans)

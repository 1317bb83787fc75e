"""Attention kernels, had before anything is timed, and the decision which attention the other parts have.

FlashInfer's are compiled by its own build (nvcc, ninja), or ready: `make gpu-kernels`, flashinfer-jit-cache. Triton's are compiled by gcc
alone. What can be had is measured and decided on as `attention = auto` does it in a service, over KV of the 8B target, once for all parts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.targets import CONFIGS, geometry_of, name_of
from specsplit.errors import LoadError
from specsplit.model import Geometry, KVCache
from specsplit.model.attention.backends import BACKENDS, require_backend
from specsplit.model.attention.choosing import ELSEWHERE, ON_A_GPU, fastest
from specsplit.model.attention.interface import AttentionBackend
from specsplit.model.attention.measuring import step_seconds
from specsplit.model.pages.pool import PagePool

DECIDED = "attention"
"""The fact that lists the backends that can be had. The first is that of the parts for which nobody sets one."""
PAGE_SIZE = 16
PAGES = 8 * 4096 // PAGE_SIZE
"""So many as attention is measured over."""
LAYERS = 4
SIZES = ("1B", "8B")


def kernels(job: Job) -> None:
    """Have the kernels of every backend for the targets that are measured, and decide on one."""
    names = ON_A_GPU if job.device.startswith("cuda") else (*ON_A_GPU, *ELSEWHERE)
    had = [name for name in names if _have(job, name)]
    chosen = _fastest(job, had) if had else "torch"
    job.findings.fact(DECIDED, sorted(had, key=lambda name: name != chosen) or [chosen])


def _have(job: Job, name: str) -> bool:
    """Have one backend for all targets at once; if that fails, say why."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(SIZES)) as pool:
        problems = [*pool.map(partial(_problem, job, name), SIZES)]
    for size, why in zip(SIZES, problems, strict=True):
        if why is not None:
            job.findings.skipped(f"attention = {name}", f"heads of the {size} target: {why}")
            return False
    job.findings.figure(name, "kernels loaded or compiled, for 1B and 8B", time.perf_counter() - started, "s")
    return True


def _problem(job: Job, name: str, size: str) -> str | None:
    try:
        kv = _kv(job, size, 1, 1)
        require_backend(name, kv)
        BACKENDS[name](kv, PAGE_SIZE)
    except LoadError as error:
        return str(error)
    return None


def _fastest(job: Job, had: Sequence[str]) -> str:
    """What takes the least time for a step's attention, as services decide it."""
    pages = PAGES if job.device.startswith("cuda") else PAGES // 64
    kv, pool = _kv(job, "8B", LAYERS, pages), PagePool(pages, PAGE_SIZE)
    names = {factory: name for name, factory in BACKENDS.items()}

    def seconds(backend: AttentionBackend) -> float | None:
        took = step_seconds(backend, kv, pool)
        if took is not None:
            what = f"attention of a step in {LAYERS} layers of 8B, plan included"
            job.findings.figure(names[type(backend)], what, 1e3 * took, "ms")
        return took

    chosen, _ = fastest(kv, PAGE_SIZE, had, seconds)
    return chosen


def _kv(job: Job, size: str, layers: int, pages: int) -> KVCache:
    geometry = Geometry(geometry_of(CONFIGS[name_of(size, tiny=job.scale.tiny)]).layers[:1] * layers)
    dtype = torch.bfloat16 if job.dtype == "bfloat16" else torch.float32
    return KVCache(geometry, (pages + 1) * PAGE_SIZE, dtype, torch.device(job.device))

"""Attention kernels, had before anything is timed, and the decision which attention the other parts have.

FlashInfer's are compiled by its own build (nvcc, ninja), or ready: `make gpu-kernels`, flashinfer-jit-cache. Triton's are compiled by gcc
alone. The first that can be had is decided on, as by `attention = auto`, once for all parts.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from benchmarks.gpu.job import Job
from specsplit.errors import LoadError
from specsplit.model import Geometry, KVCache
from specsplit.model.attention.backends import BACKENDS, choose_backend

DECIDED = "attention"
"""The fact that says what attention the parts have for which nobody sets one."""
WISHED = ("flashinfer", "triton")
"""The best first."""
HEAD_DIMS = (64, 128)
"""Head dimensions of the 1B target and of the 8B one."""


def kernels(job: Job) -> None:
    """Have the kernels of every backend for the targets that are measured, and decide on one."""
    had = [name for name in WISHED if _have(job, name)]
    job.findings.fact(DECIDED, had[0] if had else "torch")


def _have(job: Job, name: str) -> bool:
    """Have one backend for all heads at once; if that fails, say why."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(HEAD_DIMS)) as pool:
        problems = [*pool.map(partial(_problem, torch.device(job.device), name), HEAD_DIMS)]
    for head_dim, why in zip(HEAD_DIMS, problems, strict=True):
        if why is not None:
            job.findings.skipped(f"attention = {name}", f"heads of {head_dim}: {why}")
            return False
    job.findings.figure(name, "kernels loaded or compiled, heads of 64 and 128", time.perf_counter() - started, "s")
    return True


def _problem(device: torch.device, name: str, head_dim: int) -> str | None:
    kv = KVCache(Geometry.uniform(1, 8, 8, head_dim), 16, torch.bfloat16, device)
    try:
        BACKENDS[choose_backend(name, kv)](kv, 16)
    except LoadError as error:
        return str(error)
    return None

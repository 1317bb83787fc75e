"""FlashInfer's kernels, had before anything is timed: compiled by its own build (nvcc, ninja), or out of flashinfer-jit-cache."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.gpu.job import Job
from specsplit.errors import LoadError
from specsplit.model import Geometry, KVCache
from specsplit.model.attention.flashinfer.attention import FlashInferAttention, obstacle

DECIDED = "attention"
"""The fact that says what attention the parts have for which nobody sets one."""
OTHERWISE = "torch"
HEAD_DIMS = (64, 128)
"""Head dimensions of the 1B target and of the 8B one."""


def kernels(job: Job) -> None:
    """Have the kernels for the targets that are measured, both kinds at once."""
    device = torch.device(job.device)
    problem = obstacle(device, torch.bfloat16)
    if problem is not None:
        _decide(job, OTHERWISE, problem)
        return
    started = time.perf_counter()
    with ThreadPoolExecutor(len(HEAD_DIMS)) as pool:
        problems = [*pool.map(lambda each: _have(device, each), HEAD_DIMS)]
    for head_dim, why in zip(HEAD_DIMS, problems, strict=True):
        if why is not None:
            _decide(job, OTHERWISE, f"heads of {head_dim}: {why}")
            return
    _decide(job, "flashinfer")
    job.findings.figure("heads of 64 and 128", "kernels loaded or compiled", time.perf_counter() - started, "s")


def _decide(job: Job, attention: str, why: str | None = None) -> None:
    """Say what attention all parts after this one have, and why it is not FlashInfer's."""
    if why is not None:
        job.findings.skipped("attention = flashinfer", f"{why}; all parts have attention = {attention}")
    job.findings.fact(DECIDED, attention)


def _have(device: torch.device, head_dim: int) -> str | None:
    kv = KVCache(Geometry.uniform(1, 8, 8, head_dim), 16, torch.bfloat16, device)
    try:
        FlashInferAttention(kv, 16)
    except LoadError as error:
        return str(error)
    return None

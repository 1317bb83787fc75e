"""The device itself: what it is, how to wait for it, and how fast it copies."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu.job import Job
from specsplit.model.attention.flashinfer.attention import obstacle

PACKAGES = ("triton", "flashinfer-python")
WARM_UP = 3


def problem(device: str) -> str | None:
    """Say what is missing to run on `device`; None if nothing is."""
    if not device.startswith("cuda") or torch.cuda.is_available():
        return None
    built = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
    return f"there is no CUDA device: torch {torch.__version__} {built} and sees none; run it on a machine with a GPU"


def wait(device: str) -> None:
    """Return when the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def bandwidths(device: str, size: int, repeats: int) -> list[float]:
    """Bytes per second of copies of `size` bytes from the device to itself: every byte counts twice, read and written."""
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    seconds = _seconds_on_cuda if device.startswith("cuda") else _seconds
    return [2 * size / seconds(lambda: target.copy_(source)) for _ in range(repeats + WARM_UP)][WARM_UP:]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds_on_cuda(work: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def machine(job: Job) -> None:
    """Measure copies of several sizes, and tell what the device is."""
    for name, value in _facts(job.device).items():
        job.findings.fact(name, value)
    for size in job.scale.copy_bytes:
        found = bandwidths(job.device, size, job.scale.repeats)
        job.findings.figures_of(f"{size >> 20} MiB", "copy, read and written", [each / 1e9 for each in found], "GB/s")


def _facts(device: str) -> dict[str, object]:
    facts: dict[str, object] = {name: _version(name) for name in PACKAGES}
    if not device.startswith("cuda"):
        return {"device": "CPU"} | facts
    card = torch.cuda.get_device_properties(device)
    return {
        "device": card.name,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "multiprocessors": card.multi_processor_count,
        "capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "flashinfer_obstacle": obstacle(torch.device(device)) or "none",
        **facts,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (there is no nvidia-smi)"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return answer[0] if answer else "unknown"

"""Where and with what a benchmark ran; stands in every result file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "numpy")


def cpu_model() -> str:
    """The processor's name, as the kernel tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def commit() -> str:
    """The commit checked out, with "+changes" behind it if the working tree differs; "none" before the first commit."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "none"
    return head + ("+changes" if _git("status", "--porcelain", "--", ":!docs/results") else "")


def describe(command: list[str]) -> dict[str, object]:
    """Hardware, versions, commit and command of this run, ready for JSON."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "commit": commit(),
        "command": " ".join(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": sys.platform,
    }

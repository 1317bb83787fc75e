"""A part in a process of its own: what it holds of the device goes with it, and one that hangs or breaks the device stops no other.

`python -m benchmarks.gpu.child '{"part": "machine", "device": "cpu", ...}'` is that process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu.findings import Findings
from benchmarks.gpu.job import SCALES, Job

_EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception|Unavailable|DeadlineExceeded)\b")
GRACE_S = 5.0
"""A part that is still there so long after its time is killed."""


@dataclass(frozen=True, slots=True)
class Order:
    """What such a process is told."""

    part: str
    device: str
    scale: str
    """A name of SCALES."""
    models: str
    until: float
    """When it has to be done, in seconds of time.monotonic(), which all processes of a machine share."""
    findings: str
    """The file that they are written to."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    attention: Sequence[str] = ()

    def job(self) -> Job:
        """Make the part's work of it."""
        findings = Findings.writing_to(Path(self.findings), self.part)
        scale, models = SCALES[self.scale], Path(self.models)
        return Job(self.device, scale, models, self.until, findings, self.settings, self.attention)


def end_in_order() -> None:
    """Have SIGTERM end this process as Ctrl-C does: what `run` has started ends too, and holds nothing of the device."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run(order: Order, command: list[str] | None = None) -> Findings:
    """Run a part to its end, or to that of its time. Whatever it found is returned; that it failed or was stopped is said in `skips`."""
    findings, log = Findings(order.part), Path(order.findings).with_suffix(".log")
    command = command or [sys.executable, "-m", "benchmarks.gpu.child", json.dumps(asdict(order))]
    with log.open("wb") as output:
        why = _run(command, output.fileno(), order.until + GRACE_S - time.monotonic())
    if Path(order.findings).exists():
        findings.take(Path(order.findings).read_text(encoding="utf-8").splitlines())
    if why is not None:
        findings.skipped(
            "what had not been measured by then", f"{why}: {_last_words(log)} (its log: {log})", broke=True
        )
    return findings


def _run(command: list[str], output: int, seconds: float) -> str | None:
    """Why it did not end well; None if it did. Nothing that it started is left."""
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"it was stopped after {seconds:.0f} s"
        finally:
            _kill_group(process.pid)
    return None if status == 0 else f"it ended with status {status}"


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return  # everybody has left


def _last_words(log: Path) -> str:
    """The last line that names an exception, since libraries may write more behind it; else the last line of all."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if _EXCEPTION.match(line)]
    return (errors or lines or ["(it wrote nothing)"])[-1]


def main(words: list[str]) -> None:
    """Do what the order says."""
    from benchmarks.gpu.parts import part  # noqa: PLC0415 (whoever starts such a process needs none of it)

    logging.disable(logging.INFO)
    order = Order(**json.loads(words[0]))
    part(order.part).run(order.job())


if __name__ == "__main__":
    main(sys.argv[1:])

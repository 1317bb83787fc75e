"""`python -m benchmarks gpu`: what steps cost on a CUDA device, and what drafters bring there. `make gpu` prepares and runs it.

Parts run one after the other, each in a process of its own with a budget of time. What does not fit is skipped, and said.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.card import problem
from benchmarks.gpu.child import Order, run
from benchmarks.gpu.findings import Figure, Findings, Skipped
from benchmarks.gpu.kernels import DECIDED
from benchmarks.gpu.parity import FAILED
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.table import NO_GPU, report
from benchmarks.gpu.wide import widen
from benchmarks.report import Report
from benchmarks.runner import begun, parser_of
from specsplit.cli.screen import Screen

SECONDS = 520.0
WORK = Path("build/gpu/run")
"""Models, logs and findings of the latest run."""


def main(words: Sequence[str]) -> None:
    """Measure, print, write. The status is 1 if a test failed, 2 if nothing can be measured here."""
    options = _parser().parse_args(words)
    cpu = not options.device.startswith("cuda")
    if cpu and not options.quick:
        _parser().error("without a GPU there is only the small run that shows that it works; say --quick")
    if (why := problem(options.device)) is not None:
        print(f"benchmarks gpu: {why}", file=sys.stderr)
        sys.exit(2)
    context = begun(["gpu", *words], Screen(width=160), quick=cpu or options.quick)
    machine = context.machine | ({"commit": options.commit} if options.commit else {})
    settings = {"dtype": "float32" if cpu else "bfloat16", "batch": 1, "quick": options.quick, **dict(options.set)}

    def told(findings: Findings) -> Report:
        return report(findings, machine, settings, cpu=cpu)

    run = Run(options, context.console, time.monotonic() + options.seconds, lambda found: context.keep(told(found)))
    findings = run.all(options.part)
    context.write(told(findings))
    for test in failing(findings):
        context.console.print(f"FAILED {test}", highlight=False)
    sys.exit(1 if failing(findings) else 0)


def failing(findings: Findings) -> list[str]:
    """The tests that need a GPU and failed, by what pytest says of them."""
    return [str(test) for name, tests in findings.facts.items() if name.startswith(FAILED) for test in _listed(tests)]


def _listed(tests: object) -> Sequence[object]:
    return tests if isinstance(tests, list) else []


@dataclass
class Run:
    """One run of all parts."""

    options: argparse.Namespace
    console: Console
    until: float
    keep: Callable[[Findings], None]
    """Called behind every part with all that was found so far."""
    decided: dict[str, str] = field(default_factory=dict[str, str])
    """Settings that a part has decided on for those after it."""

    def all(self, wanted: Sequence[str] | None) -> Findings:
        """Run the wanted parts (None: all) that this device can run."""
        cpu = not self.options.device.startswith("cuda")
        if cpu:
            self.console.print(NO_GPU)
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        models, whole = widen(self.options.models, WORK / "models"), Findings()
        for part in PARTS:
            if wanted and part.name not in wanted:
                continue
            if cpu and not part.cpu:
                whole.skips.append(self._skip(part, "it needs a GPU"))
            elif cpu or part.gpu:
                self._add(whole, part, models)
        return whole

    def _add(self, whole: Findings, part: Part, models: Path) -> None:
        left_s = self.until - time.monotonic()
        if left_s < part.least_s:
            whole.skips.append(self._skip(part, f"of {self.options.seconds:.0f} s there are {left_s:.0f} s left"))
            return
        self.console.print(f"{part.name}: {part.what}")
        began, options = time.monotonic(), self.options
        path = WORK / f"{part.name.replace(' ', '-')}.jsonl"
        until = began + min(part.most_s, left_s)
        settings = self.decided | dict(options.set)
        found = run(Order(part.name, options.device, options.quick, str(models), until, str(path), settings))
        for each in found.figures:
            self.console.print(f"  {_told(each)}")
        for each in found.skips:
            self.console.print(f"  skipped: {each.what}: {each.why}")
        self.console.print(f"  {time.monotonic() - began:.1f} s")
        whole.figures += found.figures
        whole.skips += found.skips
        whole.facts |= found.facts
        if DECIDED in found.facts:
            self.decided[DECIDED] = str(found.facts[DECIDED])
        self.keep(whole)

    def _skip(self, part: Part, why: str) -> Skipped:
        self.console.print(f"{part.name}: skipped: {why}")
        return Skipped(part.name, part.what, why)


def _told(figure: Figure) -> str:
    return f"{figure.what}, {figure.name}: {figure.value:.4g} {figure.unit}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("gpu", __doc__, "--quick", "--models")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...; cpu goes with --quick")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together")
    parser.add_argument(
        "--part", action="append", choices=[part.name for part in PARTS], help="this one alone; may be said again"
    )
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of all services with a model, attention=torch for instance; may be said again",
    )
    parser.add_argument("--commit", help="what is measured, where there is no git to ask")
    return parser


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{word!r} is not NAME=VALUE")
    return name, value

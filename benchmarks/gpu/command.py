"""`python -m benchmarks gpu`: what steps cost on a CUDA device, and what drafters bring there. `make gpu` prepares and runs it.

Parts run one after the other, each in a process of its own with a budget of time. What does not fit is skipped, and said.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.budget import PAGE, measured, written
from benchmarks.gpu.card import problem
from benchmarks.gpu.child import Order, end_in_order, run
from benchmarks.gpu.findings import Figure, Findings
from benchmarks.gpu.job import DRY, FULL, QUICK, Scale
from benchmarks.gpu.kernels import DECIDED
from benchmarks.gpu.parity import FAILED
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.table import NO_GPU, report
from benchmarks.gpu.wide import widen
from benchmarks.report import Report
from benchmarks.runner import begun, parser_of
from specsplit.cli.screen import Screen

SECONDS = 520.0
PATIENCE = 10
"""So many times as long may a dry run and its parts take: a CPU that has other work must not stop them."""
WORK = Path("build/gpu/run")
"""Models, logs and findings of the latest run."""


def main(words: Sequence[str]) -> None:
    """Measure, print, write. The status is 1 if a test failed, 2 if nothing can be measured here."""
    options = _parser().parse_args(words)
    if options.dry:
        options.device = "cpu"
    cpu = not options.device.startswith("cuda")
    if cpu and not options.dry:
        _parser().error("without a GPU there is only the run that shows that every part works; say --dry")
    if (why := problem(options.device)) is not None:
        print(f"benchmarks gpu: {why}", file=sys.stderr)
        sys.exit(2)
    context = begun(["gpu", *words], Screen(width=160), quick=cpu or options.quick)
    machine = context.machine | ({"commit": options.commit} if options.commit else {})
    scale = scale_of(options).name
    settings = {"dtype": "float32" if cpu else "bfloat16", "batch": 1, "size": scale, **dict(options.set)}

    def told(findings: Findings) -> Report:
        return report(findings, machine, settings, cpu=cpu)

    end_in_order()
    options.seconds *= PATIENCE if options.dry else 1
    run = Run(options, context.console, time.monotonic() + options.seconds, lambda found: context.keep(told(found)))
    findings = run.all(options.part)
    context.write(told(findings))
    if scale_of(options) == FULL and (found := measured(findings)):
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    failures = failing(findings)
    for line in [f"FAILED: {failure}" for failure in failures] or ["Nothing failed."]:
        context.console.print(line, highlight=False, markup=False, soft_wrap=True)
    sys.exit(1 if failures else 0)


def failing(findings: Findings) -> list[str]:
    """What failed, in the order of the parts: tests, by what pytest says of them, and parts that broke."""
    tests = {
        name.removeprefix(FAILED): _listed(found) for name, found in findings.facts.items() if name.startswith(FAILED)
    }
    failures = [(part, str(test)) for part, found in tests.items() for test in found]
    failures += [(skip.part, skip.why) for skip in findings.skips if skip.broke]
    names = [part.name for part in PARTS]
    return [f"{part}: {why}" for part, why in sorted(failures, key=lambda failure: names.index(failure[0]))]


def scale_of(options: argparse.Namespace) -> Scale:
    """How much is measured."""
    return DRY if options.dry else QUICK if options.quick else FULL


def _listed(fact: object) -> list[str]:
    return [str(each) for each in fact] if isinstance(fact, list) else []


@dataclass
class Run:
    """One run of all parts."""

    options: argparse.Namespace
    console: Console
    until: float
    keep: Callable[[Findings], None]
    """Called behind every part with all that was found so far."""
    attention: Sequence[str] = ()
    """What the part `kernels` has decided on for those after it."""

    def all(self, wanted: Sequence[str] | None) -> Findings:
        """Run the wanted parts (None: all), one after the other."""
        if scale_of(self.options) == DRY:
            self.console.print(NO_GPU)
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        models, whole = widen(self.options.models, WORK / "models"), Findings()
        for part in PARTS:
            if not wanted or part.name in wanted:
                whole.add(self._found(part, models))
                self.keep(whole)
        return whole

    def _found(self, part: Part, models: Path) -> Findings:
        """What a part has found, or that it has found nothing."""
        began = time.monotonic()
        left_s = self.until - began
        self.console.print(f"{part.name}: {part.what}")
        if left_s < part.least_s:
            found = Findings(part.name)
            found.skipped(part.what, f"of {self.options.seconds:.0f} s there are {left_s:.0f} s left")
        else:
            most_s = part.most_s * (PATIENCE if self.options.dry else 1)
            found = run(self._order(part, models, began + min(most_s, left_s)))
        self.attention = _listed(found.facts.get(DECIDED)) or self.attention
        if not found.figures and not found.skips:
            found.skipped(part.what, "it ended without a word", broke=True)
        self._tell(found, time.monotonic() - began)
        return found

    def _order(self, part: Part, models: Path, until: float) -> Order:
        options, path = self.options, WORK / f"{part.name.replace(' ', '-')}.jsonl"
        told = dict(options.set), self.attention
        return Order(part.name, options.device, scale_of(options).name, str(models), until, str(path), *told)

    def _tell(self, found: Findings, seconds: float) -> None:
        for name, value in found.facts.items():
            self._print(f"{name}: {value}")
        for figure in found.figures:
            self._print(_told(figure))
        for skip in found.skips:
            self._print(f"{'FAILED' if skip.broke else 'skipped'}: {skip.what}: {skip.why}")
        self._print(f"{seconds:.1f} s")

    def _print(self, line: str) -> None:
        self.console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _told(figure: Figure) -> str:
    return f"{figure.what}, {figure.name}: {figure.value:.4g} {figure.unit}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("gpu", __doc__, "--quick", "--models")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ...")
    parser.add_argument(
        "--dry",
        action="store_true",
        help="every part on tiny shapes on a CPU, which shows that it works; goes to build/results",
    )
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

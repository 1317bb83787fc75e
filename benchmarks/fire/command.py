"""`python -m benchmarks fire [chaos] [fuzz] [soak]`: real processes and a seed; status 1 if anything was found that must not be."""

from __future__ import annotations

import argparse
import importlib
import math
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.context import Context
from benchmarks.fire.ending import Ending
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz.draws import Case
from benchmarks.fire.table import NOTHING_WRONG, write
from benchmarks.machine import describe
from specsplit.cli.screen import Screen

PARTS = {"chaos": "benchmarks.fire.chaos", "fuzz": "benchmarks.fire.fuzz.part", "soak": "benchmarks.fire.soak"}
"""Each module has `run(fire, seconds) -> Findings`."""
FOLDER = Path("build/fire")
MINUTES, SHORT_MINUTES = 10.0, 0.5


def main(words: Sequence[str]) -> None:
    """Run the parts asked for, print, write; status 1 if anything was found that must not be, 128 and more if told to end."""
    parser = arguments()
    options = parser.parse_args(words)
    if not (options.models / "target").is_dir():
        parser.error(
            f"there is no {options.models / 'target'}: --models names a folder with target, draft and eagle3, such as models/pocket"
        )
    if options.only and (options.part != ["fuzz"] or options.seed is None or options.corpus is None):
        parser.error(
            "--only plays cases of an earlier run again: it needs the part fuzz, and that run's --seed and --corpus"
        )
    console = Screen(width=160)
    context = Context(options.models, options.short, describe(["python -m benchmarks fire", *words]), console)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    minutes = (SHORT_MINUTES if options.short else MINUTES) if options.minutes is None else options.minutes
    ending = Ending()
    with ending.heeded():
        found = burn(context, options.part or [*PARTS], minutes, seed, ending, options.only, options.corpus)
    ending.leave()
    sys.exit(0 if all(each.sound for each in found) else 1)


def burn(
    context: Context, parts: Sequence[str], minutes: float, seed: int, ending: Ending | None = None,
    only: Sequence[str] = (), corpus: Path | None = None,
) -> list[Findings]:  # fmt: skip
    """Run these parts one after the other, for so many minutes each; what each found, which is printed and written too.

    A part that breaks off is a fault, and the others run all the same. One during which the run is told to end is the last. With `only`
    the fuzz part plays these cases of it again, by that `corpus`, and nothing is written.
    """
    folder = FOLDER / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-seed-{seed}"
    fire = Fire(context, seed, folder, ending or Ending(), only, corpus)
    fire.say(f"seed {seed}; logs of the processes in {folder}")
    found: list[Findings] = []
    try:
        for part in parts:
            context.console.rule(part)
            found.append(_burnt(fire, part, minutes * 60))
            if fire.ending.by:
                break
    finally:
        if found and only:
            fire.say("\n".join(fault for each in found for fault in each.faults) or NOTHING_WRONG)
        elif found:
            write(fire, minutes, found)
    return found


def _burnt(fire: Fire, part: str, seconds: float) -> Findings:
    """What a part found, or that it broke off; and that it ended early, if it was told to."""
    began = time.monotonic()
    try:
        findings = importlib.import_module(PARTS[part]).run(fire, seconds)
    except Exception as error:  # noqa: BLE001 (what the other parts find is written whatever this one does)
        fire.say(traceback.format_exc())
        findings = Findings(part)
        findings.must_be_none("broke off", [repr(error)])
    if told := fire.ending.by:
        when = f"told to by {told}, {fire.ending.at - began:.0f} s after its start; it was to last {seconds:g} s"
        findings.must_be_none("ended early", [when])
    return findings


def arguments() -> argparse.ArgumentParser:
    """What the command takes; `fuzz.part.replay` prints such a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fire", description=__doc__)
    parser.add_argument("part", nargs="*", type=_part, help="chaos, fuzz, soak; all of them if none is named")
    parser.add_argument("--minutes", type=_minutes, help=f"of each part; {MINUTES:g}, with --short {SHORT_MINUTES:g}")
    parser.add_argument("--seed", type=int, help="of everything that is drawn; one is drawn, and printed, if left out")
    parser.add_argument("--short", action="store_true", help="two minutes in all; the table goes to build/results")
    parser.add_argument(
        "--only", action="append", default=[], type=_case, metavar="PARTY:NUMBER", help="a fuzz case, again"
    )
    parser.add_argument("--corpus", type=Path, help="honest conversations, as the run of that case left them")
    parser.add_argument("--models", type=Path, default=Path("models/pocket"), help="folder with target and drafts")
    return parser


def _part(word: str) -> str:
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"there is no part {word!r}, expected {', '.join(PARTS)}")
    return word


def _case(word: str) -> str:
    try:
        return Case.named(0, word).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _minutes(word: str) -> float:
    with suppress(ValueError):
        if 0 < (minutes := float(word)) < math.inf:
            return minutes
    raise argparse.ArgumentTypeError(f"{word!r} is no number of minutes, expected one above 0")

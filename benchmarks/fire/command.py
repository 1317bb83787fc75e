"""`python -m benchmarks fire [chaos] [fuzz] [soak]`: real processes and a seed; status 1 if anything was found that must not be."""

from __future__ import annotations

import argparse
import importlib
import math
import random
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Never

from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.table import write
from benchmarks.machine import describe

PARTS = {"chaos": "benchmarks.fire.chaos", "fuzz": "benchmarks.fire.fuzz.part", "soak": "benchmarks.fire.soak"}
"""Each module has `run(fire, seconds) -> Findings`."""
FOLDER = Path("build/fire")
MINUTES, SHORT_MINUTES = 10.0, 0.5
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def main(words: Sequence[str]) -> None:
    """Run the parts asked for, print, write; status 1 if anything was found that must not be."""
    parser = _parser()
    options = parser.parse_args(words)
    if not (options.models / "target").is_dir():
        parser.error(
            f"there is no {options.models / 'target'}: --models names a folder with target, draft and eagle3, such as models/pocket"
        )
    console = Console() if sys.stdout.isatty() else Console(width=160)
    context = Context(options.models, options.short, describe(["python -m benchmarks fire", *words]), console)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    minutes = (SHORT_MINUTES if options.short else MINUTES) if options.minutes is None else options.minutes
    end_with_signals()
    found = burn(context, options.part or [*PARTS], minutes, seed)
    sys.exit(0 if all(each.sound for each in found) else 1)


def end_with_signals() -> None:
    """Let SIGTERM and SIGHUP end this process as an error would: processes that were stopped go on, all are told to leave.

    One that is ignored, as under nohup, stays so.
    """
    for each in _ENDING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _end)


def _end(number: int, frame: object) -> Never:
    for each in _ENDING:  # a second one must not cut short what the first one began
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def burn(context: Context, parts: Sequence[str], minutes: float, seed: int) -> list[Findings]:
    """Run these parts one after the other, for so many minutes each; what each found, which is printed and written too.

    A part that breaks off is a fault, and the others run all the same. What was found by then is written too when the run is ended.
    """
    folder = FOLDER / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-seed-{seed}"
    fire = Fire(context, seed, folder)
    fire.say(f"seed {seed}; logs of the processes in {folder}")
    found: list[Findings] = []
    try:
        for part in parts:
            context.console.rule(part)
            found.append(_burnt(fire, part, minutes * 60))
    finally:
        if found:
            write(fire, minutes, found)
    return found


def _burnt(fire: Fire, part: str, seconds: float) -> Findings:
    """What a part found, or that it broke off."""
    try:
        return importlib.import_module(PARTS[part]).run(fire, seconds)
    except Exception as error:  # noqa: BLE001 (what the other parts find is written whatever this one does)
        fire.say(traceback.format_exc())
        findings = Findings(part)
        findings.must_be_none("broke off", [repr(error)])
        return findings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fire", description=__doc__)
    parser.add_argument("part", nargs="*", type=_part, help="chaos, fuzz, soak; all of them if none is named")
    parser.add_argument("--minutes", type=_minutes, help=f"of each part; {MINUTES:g}, with --short {SHORT_MINUTES:g}")
    parser.add_argument("--seed", type=int, help="of everything that is drawn; one is drawn, and printed, if left out")
    parser.add_argument("--short", action="store_true", help="two minutes in all; the table goes to build/results")
    parser.add_argument("--models", type=Path, default=Path("models/pocket"), help="folder with target and drafts")
    return parser


def _part(word: str) -> str:
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"there is no part {word!r}, expected {', '.join(PARTS)}")
    return word


def _minutes(word: str) -> float:
    with suppress(ValueError):
        if 0 < (minutes := float(word)) < math.inf:
            return minutes
    raise argparse.ArgumentTypeError(f"{word!r} is no number of minutes, expected one above 0")

"""`python -m benchmarks fire [chaos] [fuzz] [soak]`: real processes and a seed; status 1 if anything was found that must not be."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.findings import Findings
from benchmarks.fire.fire import Fire
from benchmarks.fire.table import write
from benchmarks.machine import describe
from specsplit.errors import SpecsplitError

PARTS = {"chaos": "benchmarks.fire.chaos", "fuzz": "benchmarks.fire.fuzz.part", "soak": "benchmarks.fire.soak"}
"""Each module has `run(fire, seconds) -> Findings`."""
FOLDER = Path("build/fire")
MINUTES, SHORT_MINUTES = 10.0, 0.5


def main(words: Sequence[str]) -> None:
    """Run the parts asked for, print, write; status 1 if anything was found that must not be."""
    options = _parser().parse_args(words)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    context = Context(options.models, options.short, describe(["python -m benchmarks fire", *words]), console)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    minutes = options.minutes or (SHORT_MINUTES if options.short else MINUTES)
    try:
        found = burn(context, options.part or [*PARTS], minutes, seed)
    except SpecsplitError as error:
        sys.exit(f"benchmarks fire: {error}")
    sys.exit(0 if all(each.sound for each in found) else 1)


def burn(context: Context, parts: Sequence[str], minutes: float, seed: int) -> list[Findings]:
    """Run these parts one after the other, for so many minutes each; what each found, which is printed and written too."""
    folder = FOLDER / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-seed-{seed}"
    fire = Fire(context, seed, folder)
    fire.say(f"seed {seed}; logs of the processes in {folder}")
    found: list[Findings] = []
    for part in parts:
        context.console.rule(part)
        found.append(importlib.import_module(PARTS[part]).run(fire, minutes * 60))
    write(fire, minutes, found)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fire", description=__doc__)
    parser.add_argument("part", nargs="*", type=_part, help="chaos, fuzz, soak; all of them if none is named")
    parser.add_argument("--minutes", type=float, help=f"of each part; {MINUTES:g}, with --short {SHORT_MINUTES:g}")
    parser.add_argument("--seed", type=int, help="of everything that is drawn; one is drawn, and printed, if left out")
    parser.add_argument("--short", action="store_true", help="two minutes in all; the table goes to build/results")
    parser.add_argument("--models", type=Path, default=Path("models/pocket"), help="folder with target and drafts")
    return parser


def _part(word: str) -> str:
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"there is no part {word!r}, expected {', '.join(PARTS)}")
    return word

"""`python -m benchmarks.fire.fuzz --seed S --corpus FILE --only PARTY:NUMBER`: cases that a run of the fuzz part has told, once more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.context import Context
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz.part import run
from benchmarks.fire.fuzz.parties import PARTIES
from benchmarks.fire.fuzz.storm import COORDINATOR
from benchmarks.machine import describe
from specsplit.cli.screen import Screen


def main() -> None:
    """Play these cases on processes of their own; status 1 if anything was found that must not be."""
    options = arguments().parse_args()
    context = Context(options.models, options.short, machine=describe(sys.argv), console=Screen(width=160))
    fire = Fire(context, options.seed, Path("build/fire") / f"again-{options.seed}")
    with fire.ending.heeded():
        found = run(fire, 60.0, options.only, options.corpus)
    for fault in found.faults:
        fire.say(fault)
    fire.ending.leave()
    sys.exit(0 if found.sound else 1)


def arguments() -> argparse.ArgumentParser:
    """What the command takes; `part.replay` prints such a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fire.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="of the run")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="honest conversations, which the run left in its folder"
    )
    parser.add_argument(
        "--only", action="append", required=True, type=_case, metavar="PARTY:NUMBER", help="a case; may be repeated"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="the run was short: fewer processes, and so other victims for the same case",
    )
    parser.add_argument("--models", type=Path, default=Path("models/pocket"), help="folder with target and drafts")
    return parser


def _case(word: str) -> str:
    party, _, number = word.partition(":")
    if party not in (*PARTIES, COORDINATOR) or not number.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{word!r} is no case, expected one of {', '.join((*PARTIES, COORDINATOR))}, a colon and a number"
        )
    return word


if __name__ == "__main__":
    main()

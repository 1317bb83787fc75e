"""`python -m benchmarks.fire.fuzz --seed S --corpus FILE --only PARTY:NUMBER`: cases that a run of the fuzz part has told, once more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.context import Context
from benchmarks.fire.fire import Fire
from benchmarks.fire.fuzz.part import run
from benchmarks.machine import describe


def main() -> None:
    """Play these cases on processes of their own; status 1 if anything was found that must not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fire.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="of the run")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="honest conversations, which the run left in its folder"
    )
    parser.add_argument(
        "--only", action="append", required=True, metavar="PARTY:NUMBER", help="a case; may be repeated"
    )
    parser.add_argument("--models", type=Path, default=Path("models/pocket"), help="folder with target and drafts")
    options = parser.parse_args()
    context = Context(options.models, quick=True, machine=describe(sys.argv), console=Console(width=160))
    fire = Fire(context, options.seed, Path("build/fire") / f"again-{options.seed}")
    found = run(fire, 60.0, options.only, options.corpus)
    for fault in found.faults:
        fire.say(fault)
    sys.exit(0 if found.sound else 1)


if __name__ == "__main__":
    main()

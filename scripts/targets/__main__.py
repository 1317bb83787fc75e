"""Tries every causal language model of transformers as a target and writes docs/targets.md, or with --check says what has moved on it.

With names it tries only those and writes nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from scripts.targets.page import PAGE, listed, moved, page
from scripts.targets.walk import NODES, Finding, Outcome, walk

NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit status is 1 if anything is wrong, or with --check if the page lists others."""
    parser = argparse.ArgumentParser(prog="python -m scripts.targets", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with docs/targets.md, write nothing")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s")
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types; default: all of transformers")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"transformers has no causal language model of the kind {', '.join(sorted(unknown))}")
    names = options.names or NAMES
    findings = sorted(_walked(names, options.processes), key=lambda each: each.name)
    wrong = [each for each in findings if each.outcome is Outcome.WRONG]
    for each in wrong:
        print(f"targets: {each.name} is wrong: {each.detail}")
    if options.names:
        return bool(wrong)
    text = page(findings, NODES)
    if not options.check:
        PAGE.write_text(text)
        print(f"targets: wrote {PAGE.relative_to(PAGE.parents[1])}")
        return bool(wrong)
    differences = moved(listed(PAGE.read_text()) if PAGE.is_file() else {}, listed(text))
    for line in differences:
        print(f"targets: {line}")
    if differences:
        print("targets: if that is as it should be, run make targets and commit docs/targets.md")
    return bool(wrong or differences)


def _walked(names: Sequence[str], processes: int) -> Iterator[Finding]:
    """Every finding as soon as it is there, with a line about it."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        for number, done in enumerate(as_completed([pool.submit(walk, name) for name in names]), 1):
            found = done.result()
            off = f", off by {found.error:.0e}" if found.outcome is Outcome.SERVED else ""
            print(f"{number:3} of {len(names)}  {found.name}: {found.outcome}{off}: {found.detail[:200]}", flush=True)
            yield found


if __name__ == "__main__":
    sys.exit(main())

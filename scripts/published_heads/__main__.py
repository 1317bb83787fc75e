"""Writes the tiny checkpoints of tests/data/heads by `speculators`, with inputs and the logits that its own models give.

Run by hand, in an environment of its own, since speculators 0.9 wants transformers 5.19 or older and this project a newer one:

    python3 -m venv build/speculators && build/speculators/bin/pip install speculators==0.9.0
    build/speculators/bin/python -m scripts.published_heads [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

OUT: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "heads"
LIBRARY: Final = "speculators"


def main() -> None:
    if importlib.util.find_spec(LIBRARY) is None:
        sys.exit(f"{sys.executable} has no {LIBRARY}: see the head of {Path(__file__).relative_to(OUT.parents[2])}")
    from scripts.published_heads.blocks import BLOCKS  # noqa: PLC0415
    from scripts.published_heads.eagle3 import EAGLE3, PEAGLE  # noqa: PLC0415

    made = {**EAGLE3, **PEAGLE, **BLOCKS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(made)}; all by default")
    names = parser.parse_args().names or list(made)
    if unknown := sorted(set(names) - set(made)):
        parser.error(f"unknown: {', '.join(unknown)}; expected {', '.join(made)}")
    print(f"{LIBRARY} {version(LIBRARY)}, transformers {version('transformers')}, torch {version('torch')}")
    for name in names:
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made[name](folder)
        print(f"{name}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()

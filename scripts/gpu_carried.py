"""What is carried to a machine with a GPU: the folder of wheels and kernels for `make gpu`, and how much may be in it."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "wheels"
MOST_MIB = 64
"""Wheels and kernels travel together, and no more than that travels."""


def tell_sum(program: str, folder: Path = FOLDER) -> None:
    """Print the size of all that is in the folder, whoever put it there. Ends the program if that is too much."""
    sizes = {each: each.stat().st_size / 2**20 for each in folder.rglob("*") if each.is_file()}
    total = sum(sizes.values())
    print(f"{program}: {len(sizes)} files are carried, {total:.1f} MiB of {MOST_MIB} at most, in {folder}")
    if total > MOST_MIB:
        largest = max(sizes, key=sizes.__getitem__)
        sys.exit(
            f"{program}: {folder} holds more than {MOST_MIB} MiB; leave something out: the largest is {largest.relative_to(folder)}, "
            f"{sizes[largest]:.1f} MiB"
        )

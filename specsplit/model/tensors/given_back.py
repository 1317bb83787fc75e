"""Memory of a process that has loaded a model and does not need it any more: it is given back to the system, not only to the allocator."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAPPINGS: Final = Path("/proc/self/smaps")
_HEADER: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s+(/.*)")
_CHANGED: Final = re.compile(r"Anonymous:\s+(\d+) kB")


def give_back(folder: Path) -> None:
    """Give back the pages of weight files in a model folder, and what the allocator keeps; nothing happens where that is not Linux.

    What is read of such a file again, as the rows of embeddings are, comes back from the system's cache. A mapping that has been written
    to stays as it is.
    """
    if not _MAPPINGS.exists():
        return
    libc = ctypes.CDLL(None)
    for first, length in _unchanged(folder):
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED)
    if hasattr(libc, "malloc_trim"):  # the C library of GNU has it
        libc.malloc_trim(0)


def _unchanged(folder: Path) -> Iterator[tuple[int, int]]:
    """Address and bytes of every mapping of a file in a folder that no page has been written of."""
    whole, place = folder.resolve(), None
    files = {str(each.resolve()) for each in whole.iterdir()}
    for line in _MAPPINGS.read_text().splitlines():
        if header := _HEADER.fullmatch(line):
            first, end, path = header.groups()
            place = (int(first, 16), int(end, 16) - int(first, 16)) if path in files else None
        elif place is not None and (changed := _CHANGED.match(line)):
            if changed[1] == "0":
                yield place
            place = None

"""The text the pocket models learn from: the standard library's own source, which every machine with Python has.

Every file is wholly in one split, chosen by a hash of its path, so that held-out figures are never measured on text that was
trained on, on whichever machine the recipe runs.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__", "lib2to3"}
HELD_OUT_ONE_IN = 25
MAX_FILE_BYTES = 200_000


@dataclass(frozen=True)
class Document:
    """One source file: its path below the standard library's root, and its text."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """True if no model may see this file in training."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


def documents() -> Iterator[Document]:
    """Every usable file of the running Python's standard library, in order of its path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED & set(relative.parts) or path.stat().st_size > MAX_FILE_BYTES:
            continue
        try:
            yield Document(relative.as_posix(), path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a handful of files are in older encodings; they are not worth a special case


def split() -> tuple[list[Document], list[Document]]:
    """(training documents, held-out documents)."""
    everything = list(documents())
    return [d for d in everything if not d.held_out], [d for d in everything if d.held_out]

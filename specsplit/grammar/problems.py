"""What llguidance says of a grammar that it cannot compile, as a sentence for the caller who wrote it."""

from __future__ import annotations

import re
from typing import Final

from specsplit.errors import quoted, shortened

_PLACE: Final = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_MOST: Final = 300
"""Bytes of a sentence."""


def sentence_of(error: str) -> str:
    """Say what is wrong, and where: an error of several lines shows that by a line of carets."""
    lines = error.splitlines() or [""]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    carets = next((i for i, line in enumerate(lines) if i and line.strip() and not line.strip(" ^")), None)
    if reason is not None and carets is not None:
        at = lines[carets - 1][lines[carets].index("^") :]
        return shortened(f"{reason}, at {quoted(at)}" if at else f"{reason}, at the end", _MOST)
    if lines[0].startswith("panic"):
        return "is larger than a grammar can be"
    return shortened(_PLACE.sub(r"line \1, column \2: ", lines[0]), _MOST)

"""Where the text of a request ends, and what it reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.fire.mix import Asked
from benchmarks.known import Known

_CUT: Final = 4
"""Characters of a stop string that is cut out of a text."""
_UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no character."""


@dataclass(frozen=True, slots=True)
class Ends:
    """One choice as it has to end."""

    tokens: tuple[int, ...]
    text: str
    stop: str | None
    """The stop string before which it ends; None: it has the tokens that were asked for."""


def stops(known: Known, asked: Asked) -> tuple[str, ...]:
    """The stop strings to send: those that the text does not have, and the one that is cut out of it."""
    if asked.cut is None:
        return asked.stop
    text = known.readings[0][asked.new]
    at = int(asked.cut * len(text))
    cut = text[at : at + _CUT]
    return (*asked.stop, cut) if cut and _UNFINISHED not in cut else asked.stop


def ends(known: Known, asked: Asked) -> list[Ends]:
    """Every choice as it has to end. A stop string ends it with the token that completes the string; the text ends before it."""
    return [_end(known, asked.new, stops(known, asked), index) for index in range(asked.n)]


def _end(known: Known, new: int, stop: tuple[str, ...], index: int) -> Ends:
    tokens, readings = known.choice(index)[:new], known.readings[index][: new + 1]
    for count, text in enumerate(readings):
        for each in stop:
            if each in text:
                return Ends(tokens[:count], text[: text.index(each)], each)
    return Ends(tokens, readings[-1].rstrip(_UNFINISHED), None)

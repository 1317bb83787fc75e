"""Stop strings, which may begin and end anywhere inside tokens.

The stop string that is complete first ends the output (at the same character, the longest one), so the result does not depend on how
the text was cut into pieces, and with that not on how many tokens a step happened to commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsplit.errors import InvalidRequest


class StopScanner:
    """Passes text through up to the first stop string; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str] = (), *, include: bool = False) -> None:
        """`include`: whether a stop string that is found is passed through too. Raises InvalidRequest for an empty stop string."""
        if any(not stop for stop in stops):
            raise InvalidRequest("stop", "holds an empty string, expected at least one character in each")
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the output, if one has."""

    def feed(self, piece: str) -> str:
        """Scan the next piece -> text that is final: it neither belongs to a stop string nor may turn out to; empty after a match."""
        if not self._stops:
            return piece
        if self.matched is not None or not piece:
            return ""
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            end, self.matched = match
            self._held = ""
            return text[: end if self._include else end - len(self.matched)]
        keep = self._beginning_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @property
    def seeks(self) -> bool:
        """True if there is a stop string to be found."""
        return bool(self._stops)

    def finds(self, piece: str) -> bool:
        """Whether the next piece would complete a stop string."""
        return self._first_match(self._held + piece) is not None

    def flush(self) -> str:
        """The held text: at the end of the output it can no longer become a stop string."""
        text, self._held = self._held, ""
        return text

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """(end, stop) of the match that ends first, the longest of those."""
        found = [(start + len(stop), -len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        end, _, stop = min(found)
        return end, stop

    def _beginning_length(self, text: str) -> int:
        """Length of the longest suffix of `text` that is the beginning of a stop string."""
        longest = min(len(text), max(len(stop) - 1 for stop in self._stops))
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0

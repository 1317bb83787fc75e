"""Who hears an answer as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specsplit.requests import Delta, Done


class Listener(Protocol):
    """Hears one answer, of however many choices."""

    def hear(self, deltas: Sequence[Delta]) -> None:
        """Take in deltas of one choice that came at once, in order, at least one. It does not wait.

        Raises Unread if too much of what was heard is not read.
        """
        ...

    def end(self, done: Done) -> None:
        """Take in the end of a choice, behind its deltas. It does not wait."""
        ...

    async def room(self) -> None:
        """Return when there is room for more of what can wait: what is told of a prompt comes faster than some callers read."""
        ...

"""What is computed again of texts whose first pages are given back: from the first token on, in pages that move along with the window.

A layer sees a window of what the layer below made of the tokens there, and that layer saw a window too: so the KV that a position reads
can only be made of the whole text before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.tables import RowPages


class _Replay:
    """One text."""

    def __init__(self, pool: PagePool) -> None:
        self.table: Final = PageTable(pool)
        self.end = 0
        """Tokens, from the front, that are computed again, or are in the step that is planned."""


class Replays:
    """Texts that are computed again, by session. Their pages are their own: nobody else reads them, nor are they cached."""

    def __init__(self, pool: PagePool, reserve: Callable[[PageTable, int], object]) -> None:
        """`reserve`: gives a table slots for so many tokens, or for as many as there are pages for."""
        self._pool: Final = pool
        self._reserve: Final = reserve
        self._by_session: Final[dict[int, _Replay]] = {}

    def place(self, session: int, wanted: range) -> tuple[range, RowPages] | None:
        """Place the next positions to compute -> they, and their pages; None: there are no pages for them.

        There are `len(wanted)` at most. They follow those of the step before where these lie before the wanted ones; else they are the
        first ones of the text.
        """
        replay = self._by_session.setdefault(session, _Replay(self._pool))
        if replay.end > wanted.start:
            replay.table.release()
            replay.end = 0
        start, stop = replay.end, min(replay.end + len(wanted), wanted.stop)
        self._reserve(replay.table, stop)
        replay.end = min(stop, len(replay.table))
        return (range(start, replay.end), replay.table.upto(replay.end)) if start < replay.end else None

    def end_step(self) -> None:
        """A step is over: give back what no position to come sees."""
        for replay in self._by_session.values():
            replay.table.release_before(self._pool.first_seen(replay.end))

    def drop(self, session: int) -> None:
        """A session needs nothing computed again; what is wanted later begins at the first token."""
        replay = self._by_session.pop(session, None)
        if replay is not None:
            replay.table.release()

    def drop_all(self) -> None:
        """The pages are needed for others."""
        for session in [*self._by_session]:
            self.drop(session)

"""Which window pages sessions hold, in a model only some of whose layers see all tokens (`specsplit.model.pages.windows`).

A session holds those of the tokens that its next step sees. Those that it leaves stay with their pages until others need the room, so
that the prefix cache finds them. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.tables import Slots
from specsplit.model.pages.windows import OutOfWindowPages, WindowPages
from specsplit.values import pages_held
from specsplit_verifier.sessions.session import Session


@dataclass(slots=True, eq=False)
class _Replay:
    """A text whose tokens are computed again from the first one on, since their window pages are gone."""

    end: int = 0
    """Tokens, from the front, that are computed again, or are in the step that is planned."""
    held: dict[int, int] = field(default_factory=dict[int, int])
    """Pages whose window pages are held for it, by their number in the text."""
    placed: tuple[PageTable, int, Slots] | None = None
    """Of the step that is planned: the table of its session, the first page that is computed, and the scratch pages for them."""


class SessionWindows:
    """The window pages of all sessions of a pool."""

    def __init__(self, pool: PagePool, windows: WindowPages) -> None:
        self._windows: Final = windows
        self._size: Final = pool.page_size
        self._replays: Final[dict[int, _Replay]] = {}

    def begin_at(self, count: int, page: Callable[[int], int]) -> int:
        """With the first pages of a text known, find how many of them it can begin behind: those that it then sees have window pages.

        `page` looks one of them up. The last one that it sees and that has none is one before which it can begin at most.
        """
        while True:
            seen = range(self._windows.first_seen(count * self._size) // self._size, count)
            gap = next((number for number in reversed(seen) if not self._windows.has(page(number))), None)
            if gap is None:
                return count
            count = gap

    def has_room(self, tokens: int, in_step: int) -> bool:
        """True if there is room for the window of a text of so many tokens, with up to `in_step` of them in a step."""
        wanted = pages_held(tokens + in_step, in_step, self._size, self._windows.window)
        return min(wanted, self._windows.total_pages) <= self._windows.free_pages

    def see(self, session: Session, tokens: int) -> None:
        """Hold what a step sees in which the session has so many tokens. Raises OutOfWindowPages."""
        session.table.see(session.kv_length, session.kv_length + tokens)

    def step(self, stepping: Sequence[Session], prefilling: Sequence[tuple[Session, int]]) -> bool:
        """Hold what sessions see in the step that is planned: no drafts, and little of prompts, if there is no room for more.

        `prefilling`: sessions, and how many tokens of their texts the step reads. False if there is no room even for that.
        """
        counts = [*((session, session.width) for session in stepping), *prefilling]
        if self._see_all(counts):
            return True
        self.drop_all()
        for session in stepping:
            session.table.shrink(len(session.tokens))
        for session, _ in prefilling:
            session.table.shrink(session.kv_length + 1)
        return self._see_all(counts)

    def _see_all(self, counts: Iterable[tuple[Session, int]]) -> bool:
        try:
            for session, tokens in counts:
                self.see(session, tokens)
        except OutOfWindowPages:
            return False
        return True

    def positions(self, session: Session, wanted: range) -> range:
        """Which positions are computed next of those that are `wanted` again: from a page's begin on, whose window is there.

        Where it is not, the text is computed again from the first token on, some of it in every step; none is, until there is room for
        one more window beside those of other texts.
        """
        start = wanted.start // self._size * self._size
        first = self._windows.first_seen(start)
        if session.table.first_in_window <= first:
            self.drop(session.id)
            return range(start, wanted.stop)
        if session.id not in self._replays and not self._has_room_for_another():
            return wanted[:0]
        replay = self._replays.setdefault(session.id, _Replay())
        if replay.end > start and first // self._size < min(replay.held, default=replay.end // self._size):
            self.drop(session.id)
            replay = self._replays.setdefault(session.id, _Replay())
        start = min(start, replay.end // self._size * self._size)
        return range(start, min(start + max(len(wanted), self._size), wanted.stop))

    def placed(self, session: Session, positions: range, own: Slots) -> None:
        """These positions are computed in the step that is planned, in these scratch pages."""
        replay = self._replays.get(session.id)
        if replay is not None:
            replay.end = positions.stop
            replay.placed = session.table, positions.start // self._size, own

    def end_step(self) -> None:
        """A step is over, and its scratch pages are about to be given back: texts keep the window pages that were computed for them."""
        for replay in self._replays.values():
            if replay.placed is not None:
                self._keep(replay, *replay.placed)
                replay.placed = None

    def drop(self, session: int) -> None:
        """A session needs nothing computed again; what is wanted later begins at the first token."""
        replay = self._replays.pop(session, None)
        if replay is not None:
            self._windows.leave(replay.held.values())

    def drop_all(self) -> None:
        """The room is needed for others."""
        for session in [*self._replays]:
            self.drop(session)

    def _has_room_for_another(self) -> bool:
        """Whether one more text can be computed again without taking what others will need: with too little, none would get to its end."""
        whole = self._windows.session_pages
        lacking = sum(whole - len(replay.held) for replay in self._replays.values())
        return not self._replays or lacking + whole <= self._windows.free_pages

    def _keep(self, replay: _Replay, table: PageTable, first: int, own: Slots) -> None:
        """Keep the full pages of what was computed, in the place of those of its session, and of all of them what is still seen."""
        stop = replay.end // self._size
        for number, scratch, page in zip(
            range(first, stop), own.tolist(), table.pages(first, stop).tolist(), strict=False
        ):
            if number not in replay.held:
                self._windows.hand(scratch, page)
                self._windows.hold([page])
                replay.held[number] = page
        seen = self._windows.first_seen(stop * self._size) // self._size  # it goes on from the begin of a page
        self._windows.leave(replay.held.pop(number) for number in [*replay.held] if number < seen)

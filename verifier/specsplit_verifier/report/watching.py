"""What people who look on see of a session: every step's tree, and what grew meanwhile. Free while nobody looks. On the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from specsplit.errors import InvalidRequest, NotFound, quoted
from specsplit.sessions import WatchedStep
from specsplit.speculation import Grow
from specsplit.wire.watching import Watched, check_shape
from specsplit_verifier.records.events import FromDrafter
from specsplit_verifier.records.step import SessionResult, TreeView

EVENTS_KEPT = 256
"""For a watcher that reads slowly; older ones are left out."""


def _is_a_tree(grow: Grow) -> bool:
    """False for a grow that the mirror will refuse: nobody who watches is to end over it."""
    try:
        check_shape(grow)
    except InvalidRequest:
        return False
    return True


def watched_step(result: SessionResult, tree: TreeView) -> WatchedStep:
    """Describe what a step was to a session whose speculation was `tree`."""
    draft, commit = result.draft, result.reroot.commit
    index = {node_id: i for i, node_id in enumerate(tree.ids)}
    verified = set(draft.ids[1:])
    return WatchedStep(
        tree.ids,
        tree.parents,
        tree.tokens,
        tree.edges,
        [True, *(node_id in verified for node_id in tree.ids[1:])],
        [0, *(index[draft.ids[i]] for i in result.accepted_path[1:])],
        result.bonus,
        result.committed,
        draft.positions[0],
        commit.number if commit else 0,
        result.shown_plan,
        result.reply.speculation,
        result.reply.no_drafts,
    )


class _Watcher:
    """One reader, and what it has not read yet."""

    def __init__(self) -> None:
        self._events: deque[Watched] = deque()
        self._missed = 0
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, event: Watched) -> None:
        if len(self._events) == EVENTS_KEPT:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def events(self) -> AsyncGenerator[tuple[Watched, int], None]:
        while True:
            while self._events:
                missed, self._missed = self._missed, 0
                yield self._events.popleft(), missed
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()


class Watching:
    """The watchers of sessions."""

    def __init__(self) -> None:
        self._requests: dict[int, str] = {}
        self._watchers: dict[int, list[_Watcher]] = {}
        self.watched: frozenset[int] = frozenset()
        """Sessions that somebody looks at. Any thread may ask."""

    def began(self, session: int, request_id: str) -> None:
        """Note that a session is there."""
        self._requests[session] = request_id

    def ended(self, session: int) -> None:
        """Note that a session is over, and end its watchers. A second call does nothing."""
        self._requests.pop(session, None)
        for watcher in self._watchers.get(session, ()):
            watcher.end()

    def grown(self, message: FromDrafter) -> None:
        """A drafter has grown something, perhaps for a session that is watched."""
        if not self.watched:
            return
        for session, event in message.events:
            if isinstance(event, Grow) and (event.ids or event.rescored) and _is_a_tree(event):
                self._tell(session, event)

    def stepped(self, results: Iterable[SessionResult]) -> None:
        """Tell watchers of a step that is over."""
        for result in results:
            if result.tree is not None:
                self._tell(result.session, watched_step(result, result.tree))

    async def watch(self, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """What happens to a session from now to its end, and how many events were left out before each.

        Of several sessions with the same request id it is the one that came last. Raises NotFound if there is none.
        """
        session = next((number for number, name in reversed(self._requests.items()) if name == request_id), None)
        if session is None:
            raise NotFound(f"no session of request {quoted(request_id)} is here")
        watcher = _Watcher()
        self._watchers.setdefault(session, []).append(watcher)
        self.watched = frozenset(self._watchers)
        try:
            async for event in watcher.events():
                yield event
        finally:
            self._watchers[session].remove(watcher)
            if not self._watchers[session]:
                del self._watchers[session]
            self.watched = frozenset(self._watchers)

    def _tell(self, session: int, event: Watched) -> None:
        for watcher in self._watchers.get(session, ()):
            watcher.tell(event)

"""What people who look on are shown of a session: every step's tree, and what grew meanwhile. Costs nothing while nobody looks.

The first two functions belong to the engine thread and see sessions that are watched only; `Watching` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass

from specsplit.errors import NotFound, quoted
from specsplit.sessions import WatchedStep
from specsplit.speculation import Draft, Grow
from specsplit.wire.watching import Watched
from specsplit_verifier.events import FromDrafter
from specsplit_verifier.session import Session, Verdict
from specsplit_verifier.stepper import Prepared, StepResult

EVENTS_KEPT = 256
"""For a watcher that reads slowly; older ones are left out."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole speculation, root first, parents before children; as in `WatchedStep`."""

    ids: Sequence[int]
    parents: Sequence[int]
    tokens: Sequence[int]
    scores: Sequence[float]


def watched_trees(prepared: Prepared, watched: Collection[int]) -> dict[int, Tree]:
    """By session: the speculation of those watched as the step is about to be settled."""
    pairs = zip(prepared.batch.decoding, prepared.drafts, strict=True) if watched else ()
    return {session.id: _tree(session, draft) for session, draft in pairs if session.id in watched}


def watched_steps(result: StepResult, trees: Mapping[int, Tree]) -> list[tuple[int, WatchedStep]]:
    """(session, what the step was to it) of those whose trees were taken."""
    if not trees:
        return []
    return [
        (session.id, _step(session, draft, verdict, trees[session.id]))
        for session, draft, verdict in result.verdicts
        if session.id in trees
    ]


def _tree(session: Session, draft: Draft) -> Tree:
    if session.mirror is None:  # it has no drafter, or lost it while the step was in flight
        return Tree(draft.ids, draft.parents, draft.tokens, draft.survivals)
    root = session.mirror.tree.root
    nodes = [root, *root.descendants()]
    index = {id(node): i for i, node in enumerate(nodes)}
    return Tree(
        [node.id for node in nodes],
        [-1, *(index[id(node.parent)] for node in nodes[1:])],
        [node.token for node in nodes],
        [node.score for node in nodes],
    )


def _step(session: Session, draft: Draft, verdict: Verdict, tree: Tree) -> WatchedStep:
    index = {node_id: i for i, node_id in enumerate(tree.ids)}
    verified = set(draft.ids[1:])
    return WatchedStep(
        tree.ids,
        tree.parents,
        tree.tokens,
        tree.scores,
        [True, *(node_id in verified for node_id in tree.ids[1:])],
        [0, *(index[draft.ids[i]] for i in verdict.path[1:])],
        verdict.bonus,
        len(verdict.output.tokens) if verdict.output else 0,
        draft.positions[0],
        verdict.commit.number if verdict.commit else 0,
        session.plan,
        verdict.totals,
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
    """Who looks at which session."""

    def __init__(self) -> None:
        self._requests: dict[int, str] = {}
        self._watchers: dict[int, list[_Watcher]] = {}
        self._watched: frozenset[int] = frozenset()

    @property
    def watched(self) -> frozenset[int]:
        """Sessions that somebody looks at. Any thread may ask."""
        return self._watched

    def began(self, session: int, request_id: str) -> None:
        """A session is there."""
        self._requests[session] = request_id

    def ended(self, session: int) -> None:
        """A session is over; again has no effect."""
        self._requests.pop(session, None)
        for watcher in self._watchers.get(session, ()):
            watcher.end()

    def grown(self, message: FromDrafter) -> None:
        """A drafter has grown something, perhaps for a session that is watched."""
        if not self._watched:
            return
        for session, event in message.events:
            if isinstance(event, Grow) and event.ids:
                self._tell(session, event)

    def stepped(self, steps: Sequence[tuple[int, WatchedStep]]) -> None:
        """A step is over."""
        for session, step in steps:
            self._tell(session, step)

    async def watch(self, request_id: str) -> AsyncGenerator[tuple[Watched, int], None]:
        """What happens to a session from now to its end, and how many events were left out before each.

        Of several sessions with the same request id it is the one that came last. Raises NotFound if there is none.
        """
        session = next((number for number, name in reversed(self._requests.items()) if name == request_id), None)
        if session is None:
            raise NotFound(f"no session of request {quoted(request_id)} is here")
        watcher = _Watcher()
        self._watchers.setdefault(session, []).append(watcher)
        self._watched = frozenset(self._watchers)
        try:
            async for event in watcher.events():
                yield event
        finally:
            self._watchers[session].remove(watcher)
            if not self._watchers[session]:
                del self._watchers[session]
            self._watched = frozenset(self._watchers)

    def _tell(self, session: int, event: Watched) -> None:
        for watcher in self._watchers.get(session, ()):
            watcher.tell(event)

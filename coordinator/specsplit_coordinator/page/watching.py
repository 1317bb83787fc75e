"""The speculation of one session as snapshots, a few a second, made of what its verifier tells about every step.

A snapshot is a token tree with a state for every node. A step gives one (what was verified, what of it was accepted, and the bonus); when
none comes for a while, the speculation as it grows below the new root gives others. Steps that come faster than people look are left
out; their tokens are not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from specsplit.errors import NotFound, SpecsplitError
from specsplit.sessions import WatchedStep
from specsplit.speculation import Grow
from specsplit.text.tokenizer import Tokenizer
from specsplit.wire.watching import Watched
from specsplit_coordinator.dialler import Dialler
from specsplit_coordinator.request_log import RUNNING, LoggedRequest, RequestLog

NODES_SHOWN = 64
"""In one snapshot: what was verified and the likeliest of the others."""
PACE_S = 0.1
"""Between two snapshots, at least."""
HOLD_S = 0.4
"""How long a step is shown before what grows next is."""
LOOK_S = 0.05
"""How often a request that does not run yet is looked at."""

Snapshot = dict[str, Any]
"""Ready for JSON."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A node to draw. Rows stand parents before children, the root first."""

    key: str
    """The same in every snapshot of the same token."""
    parent: int
    """Index of the parent's row; -1 for the root."""
    token: int
    edge: float
    """As in `Grow`; -inf for a bonus that was no node."""
    state: str
    """root, drafted, accepted, rejected or bonus."""


class Speculation:
    """The tree that a session's next step starts from, as far as it is known. Pure.

    Every step tells its whole tree, so what is kept is just the rows below the bonus of the last one, and what has grown there since.
    """

    def __init__(self, piece: Callable[[int], str]) -> None:
        """`piece` gives the text of a token."""
        self._piece = piece
        self._commits = 0
        self._rows: list[_Row] = []
        self._places: dict[int, int] = {}
        """Rows by the id of their node."""

    def step(self, step: WatchedStep) -> Snapshot:
        """What a step made of its tree; from now on the tree is the one below the bonus."""
        rows = _rows(step)
        deepest, position = step.accepted[-1], step.root_position + len(step.accepted)
        heir = next((i for i, row in enumerate(rows) if (row.parent, row.token) == (deepest, step.bonus)), len(rows))
        if heir == len(rows):
            rows.append(_Row(f"t{position}", deepest, step.bonus, -math.inf, "bonus"))
        rows[heir] = replace(rows[heir], state="bonus")
        self._keep_below(rows, heir, step.ids)
        self._commits = step.commits
        return self._snapshot(rows)

    def _keep_below(self, rows: Sequence[_Row], heir: int, ids: Sequence[int]) -> None:
        self._rows = [replace(rows[heir], parent=-1, state="root")]
        moved = {heir: 0}
        for old, row in enumerate(rows[heir + 1 :], heir + 1):
            if row.parent in moved:
                moved[old] = len(self._rows)
                self._rows.append(replace(row, parent=moved[row.parent], state="drafted"))
        self._places = {ids[old]: new for old, new in moved.items() if old < len(ids) and ids[old]}

    def grown(self, grow: Grow) -> int:
        """How many nodes and edges of a grow found their place; others wait for the next step, which tells the whole tree."""
        added = 0
        taken = {(row.parent, row.token) for row in self._rows}
        for node_id, parent_id, token, edge in zip(grow.ids, grow.parents, grow.tokens, grow.edges, strict=True):
            parent = self._places.get(parent_id)
            if parent_id == 0 and grow.commits == self._commits and self._rows:
                parent = 0
            if parent is not None and (parent, token) not in taken:
                taken.add((parent, token))
                self._places[node_id] = len(self._rows)
                self._rows.append(_Row(f"n{node_id}", parent, token, edge, "drafted"))
                added += 1
        return added + self._rescored(grow)

    def _rescored(self, grow: Grow) -> int:
        """Give nodes their new edges: how many of them are there."""
        places = {
            self._places[i]: edge for i, edge in zip(grow.rescored, grow.new_edges, strict=True) if i in self._places
        }
        for place, edge in places.items():
            self._rows[place] = replace(self._rows[place], edge=edge)
        return len(places)

    def growing(self) -> Snapshot:
        """Draw the tree as it waits for the next step."""
        return self._snapshot(self._rows)

    def _snapshot(self, rows: Sequence[_Row]) -> Snapshot:
        survivals = _survivals(rows)
        kept = _worth_showing(rows, survivals)
        return {
            "nodes": [
                {
                    "key": row.key,
                    "parent": kept.get(row.parent, -1),
                    "text": self._piece(row.token),
                    "survival": None if math.isinf(survivals[i]) else round(math.exp(survivals[i]), 4),
                    "state": row.state,
                }
                for i, row in ((i, rows[i]) for i in kept)
            ],
            "hidden": len(rows) - len(kept),
        }


def _rows(step: WatchedStep) -> list[_Row]:
    """Make the rows of the tree of a step, without its bonus."""
    states = ["rejected" if verified else "drafted" for verified in step.verified]
    for place in step.accepted:
        states[place] = "accepted"
    states[0] = "root"
    keys = [f"n{node_id}" if node_id else f"t{step.root_position}" for node_id in step.ids]
    columns = zip(keys, step.parents, step.tokens, step.edges, states, strict=True)
    return [_Row(*row) for row in columns]


def _survivals(rows: Sequence[_Row]) -> list[float]:
    """Log-survival of each: the sum of the edges on its path below the root."""
    found: list[float] = []
    for row in rows:
        found.append(found[row.parent] + row.edge if row.parent >= 0 else 0.0)
    return found


def _worth_showing(rows: Sequence[_Row], survivals: Sequence[float]) -> dict[int, int]:
    """What was verified, the bonus, and the likeliest of the others whose parents are shown: their rows, and where they will stand."""
    settled = [i for i, row in enumerate(rows) if row.state != "drafted"]
    others = sorted((i for i, row in enumerate(rows) if row.state == "drafted"), key=lambda i: -survivals[i])
    wanted = {*settled, *others[: max(0, NODES_SHOWN - len(settled))]}
    kept: dict[int, int] = {}
    for i, row in enumerate(rows):
        if i in wanted and (row.parent in kept or row.parent < 0):
            kept[i] = len(kept)
    return kept


def watch(
    tokenizer: Tokenizer, dialler: Dialler, requests: RequestLog, number: int
) -> AsyncGenerator[Snapshot, None] | None:
    """What is to be seen of the request with this number; None if it is not known."""
    request = requests.find(number)
    return None if request is None else Watch(tokenizer, dialler, request).snapshots()


class Watch:
    """One watcher of one request."""

    def __init__(self, tokenizer: Tokenizer, dialler: Dialler, request: LoggedRequest) -> None:
        self._dialler = dialler
        self._request = request
        self._speculation = Speculation(tokenizer.piece)
        self._detokenizer = tokenizer.detokenizer()
        self._stepped = asyncio.Event()
        self._news = asyncio.Event()
        self._step: Snapshot | None = None
        self._text: list[tuple[str, bool]] = []
        self._steps_left_out = 0

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """Until the session ends; the last one says how. Raises SpecsplitError if the verifier is lost or cannot tell."""
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._wake())
        try:
            while not reader.done() or self._step is not None:
                await self._news.wait()
                if self._step is not None:
                    yield self._take_step()
                    await _pause(self._stepped, PACE_S, HOLD_S)
                elif not reader.done():
                    self._news.clear()
                    yield {"kind": "growing", **self._speculation.growing()}
                    await asyncio.sleep(PACE_S)
            reader.result()
            yield {"kind": "end", "text": self._take_text()}
        finally:
            reader.cancel()
            await asyncio.wait({reader})

    def _wake(self) -> None:
        self._stepped.set()
        self._news.set()

    def _take_step(self) -> Snapshot:
        snapshot = self._step
        assert snapshot is not None
        snapshot |= {"text": self._take_text(), "left_out": self._steps_left_out}
        self._step, self._steps_left_out = None, 0
        self._stepped.clear()
        self._news.clear()
        return snapshot

    def _take_text(self) -> list[tuple[str, bool]]:
        """(piece, whether it was a draft) of what was committed since this was last asked."""
        text, self._text = self._text, []
        return text

    async def _read(self) -> None:
        while self._request.state != RUNNING:
            if self._request.ending is not None:
                return
            await asyncio.sleep(LOOK_S)
        assert self._request.verifier is not None
        while self._request.state == RUNNING:
            try:
                async with aclosing(self._dialler.watch(self._request.verifier, self._request.request_id)) as events:
                    async for event, missed in events:
                        self._take_in(event, missed)
                return
            except NotFound:  # its Decode call is not there yet, or over already
                await asyncio.sleep(LOOK_S)

    def _take_in(self, event: Watched, missed: int) -> None:
        if isinstance(event, Grow):
            if self._speculation.grown(event):
                self._news.set()
            return
        self._steps_left_out += missed + (self._step is not None)
        self._step = {"kind": "step", **_facts(event), **self._speculation.step(event)}
        tokens = [*(event.tokens[i] for i in event.accepted[1:]), event.bonus][: event.committed]
        for place, token in enumerate(tokens, 1):
            self._text.append((self._detokenizer.feed(token), place < len(event.accepted)))
        self._wake()


async def _pause(news: asyncio.Event, least_s: float, most_s: float) -> None:
    """Return after `least_s` and once there are news, but after `most_s` at the latest."""
    await asyncio.sleep(least_s)
    try:
        async with asyncio.timeout(most_s - least_s):
            await news.wait()
    except TimeoutError:
        return


def _facts(step: WatchedStep) -> Snapshot:
    return {
        "step": step.speculation.steps,
        "position": step.root_position,
        "verified": sum(step.verified) - 1,
        "accepted": len(step.accepted) - 1,
        "committed": step.committed,
        "accept_length": round(step.speculation.accept_length, 3),
        "plan": vars(step.plan),
    }


def sentence(error: SpecsplitError) -> Snapshot:
    """The last snapshot of a session that cannot be watched any more."""
    return {"kind": "end", "text": [], "why": str(error)}

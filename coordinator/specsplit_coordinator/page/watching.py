"""The speculation of one session as snapshots, a few a second, made of what its verifier tells about every step.

A snapshot is a token tree with a state for every node. A step gives one (what was verified, what of it was accepted, and the bonus); when
none comes for a while, the speculation as it grows below the new root gives others. Steps that come faster than people look are left
out; their tokens are not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
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
"""How long what a step brought stays before the snapshot shows what grows next."""
LOOK_S = 0.05
"""How often a request that does not run yet is looked at."""

Snapshot = dict[str, Any]
"""Ready for JSON."""


@dataclass(slots=True)
class _Node:
    """A node to draw."""

    key: str
    """The same in every snapshot of the same token."""
    parent: _Node | None
    token: int
    score: float
    state: str
    """root, drafted, accepted, rejected or bonus."""
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])
    """By token."""


class Speculation:
    """The tree as far as it is known. Pure."""

    def __init__(self, piece: Callable[[int], str]) -> None:
        """`piece` gives the text of a token."""
        self._piece = piece
        self._commits = 0
        self._root: _Node | None = None
        self._nodes: dict[int, _Node] = {}
        """By id."""

    def step(self, step: WatchedStep) -> Snapshot:
        """What a step made of it; from now on the tree is the one below the bonus."""
        nodes = [_Node(_key(step, 0), None, step.tokens[0], step.scores[0], "root")]
        for index in range(1, len(step.ids)):
            parent = nodes[step.parents[index]]
            state = "rejected" if step.verified[index] else "drafted"
            node = _Node(_key(step, index), parent, step.tokens[index], step.scores[index], state)
            parent.children[node.token] = node
            nodes.append(node)
        for index in step.accepted[1:]:
            nodes[index].state = "accepted"
        deepest = nodes[step.accepted[-1]]
        heir = deepest.children.get(step.bonus)
        bonus = heir or _Node(f"t{step.root_position + len(step.accepted)}", deepest, step.bonus, -math.inf, "bonus")
        bonus.state = "bonus"
        snapshot = self._snapshot([*nodes, *([] if heir else [bonus])])
        self._reroot(bonus, {key: node for key, node in zip(step.ids, nodes, strict=True) if key})
        self._commits = step.commits
        return snapshot

    def _reroot(self, root: _Node, by_id: dict[int, _Node]) -> None:
        below = {id(node) for node in _descendants(root)}
        self._nodes = {key: node for key, node in by_id.items() if id(node) in below or node is root}
        for node in self._nodes.values():
            node.state = "drafted"
        root.parent, root.state = None, "root"
        root.score = 0.0 if math.isinf(root.score) else root.score
        self._root = root

    def grown(self, grow: Grow) -> int:
        """How many nodes of a grow found their place; others wait for the next step, which tells the whole tree."""
        added = 0
        for key, parent_id, token, score in zip(grow.ids, grow.parents, grow.tokens, grow.scores, strict=True):
            parent = self._nodes.get(parent_id)
            if parent_id == 0 and grow.commits == self._commits:
                parent = self._root
            if parent is not None and token not in parent.children:
                parent.children[token] = self._nodes[key] = _Node(f"n{key}", parent, token, score, "drafted")
                added += 1
        return added

    def growing(self) -> Snapshot:
        """The tree as it waits for the next step."""
        return self._snapshot([] if self._root is None else [self._root, *_descendants(self._root)])

    def _snapshot(self, nodes: list[_Node]) -> Snapshot:
        shown = _worth_showing(nodes)
        index = {id(node): i for i, node in enumerate(shown)}
        root_score = nodes[0].score if nodes else 0.0
        return {
            "nodes": [
                {
                    "key": node.key,
                    "parent": -1 if node.parent is None else index[id(node.parent)],
                    "text": self._piece(node.token),
                    "survival": None if math.isinf(node.score) else round(math.exp(node.score - root_score), 4),
                    "state": node.state,
                }
                for node in shown
            ],
            "hidden": len(nodes) - len(shown),
        }


def _key(step: WatchedStep, index: int) -> str:
    return f"n{step.ids[index]}" if step.ids[index] else f"t{step.root_position}"


def _descendants(root: _Node) -> Iterable[_Node]:
    stack = [root]
    while stack:
        for child in stack.pop().children.values():
            yield child
            stack.append(child)


def _worth_showing(nodes: list[_Node]) -> list[_Node]:
    """What was verified, the bonus and the likeliest of the others, in the order given: no child outscores its parent, so none loses it."""
    settled = [node for node in nodes if node.state != "drafted"]
    others = sorted((node for node in nodes if node.state == "drafted"), key=lambda node: -node.score)
    kept = {id(node) for node in [*settled, *others[: max(0, NODES_SHOWN - len(settled))]]}
    return [node for node in nodes if id(node) in kept and _is_whole(node, kept)]


def _is_whole(node: _Node, kept: set[int]) -> bool:
    """True if every node above it is kept."""
    above = node.parent
    while above is not None:
        if id(above) not in kept:
            return False
        above = above.parent
    return True


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
            if self._request.ended_at is not None:
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

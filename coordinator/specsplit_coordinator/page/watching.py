"""The speculation of one session as snapshots, a few a second, made of what its verifier tells about every step.

A snapshot is a token tree with a state for every node. A step gives one (what was verified, what of it was accepted, and the bonus); when
none comes for a while, the speculation as it grows below the new root gives others. Steps that come faster than people look are left
out; their tokens are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import numpy as np

from specsplit.errors import NotFound, SpecsplitError, Unavailable
from specsplit.sessions import WatchedStep
from specsplit.speculation import Grow
from specsplit.text.tokenizer import Tokenizer
from specsplit.tree import LEAST_EDGE, ROOT, TokenTree, likeliest, link
from specsplit.wire.watching import Watched
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.verifier_client import VerifierClient
from specsplit_coordinator.requests.request_log import LoggedRequest, RequestLog

NODES_SHOWN = 64
"""Nodes shown in one snapshot: what was verified and the likeliest of the others."""
PACE_S = 0.1
"""Seconds between two snapshots, at least."""
HOLD_S = 0.4
"""How long a step is shown before what grows next is."""
LOOK_S = 0.05
"""How often a request that does not run yet is looked at."""

Snapshot = dict[str, Any]
"""Ready for JSON."""


class Speculation:
    """The tree that a session's next step starts from, as far as it is known. Pure.

    Every step tells its whole tree, so what is kept is just what hangs below the bonus of the last one, and what has grown there since.
    """

    def __init__(self, piece: Callable[[int], str]) -> None:
        """`piece` gives the text of a token."""
        self._piece = piece
        self._commits = -1
        """How many commits made the root, as the last step told it; -1, which no grow says: no step has come."""
        self.tree = TokenTree(0, 0)

    def step(self, step: WatchedStep) -> Snapshot:
        """Draw what a step made of its tree; from now on the tree is the one below the bonus."""
        self.tree, self._commits, deepest = _tree(step), step.commits, step.accepted[-1]
        heir = self.tree.child(deepest, step.bonus)
        if heir is None:  # a bonus that was no node is drawn too, and has no id
            heir = self.tree.add(deepest, 0, step.bonus, LEAST_EDGE)
        states = {slot: "rejected" for slot, verified in enumerate(step.verified) if verified}
        snapshot = self._snapshot(states | dict.fromkeys(step.accepted, "accepted") | {ROOT: "root", heir: "bonus"})
        self.tree.reroot(deepest, step.bonus)
        return snapshot

    def grown(self, grow: Grow) -> int:
        """Take in a grow: how many of its nodes and edges found their place; others wait for the next step, which tells the whole tree."""
        tree, before = self.tree, len(self.tree)
        root_id = tree.root_id if grow.commits == self._commits else -1
        slots = {parent_id: tree.find(parent_id or root_id) for parent_id in {*grow.parents}}
        taken = tree.links_below(slot for slot in slots.values() if slot is not None)
        for node_id, parent_id, token, edge in zip(grow.ids, grow.parents, grow.tokens, grow.edges, strict=True):
            parent = slots[parent_id]
            is_new = node_id > tree.id_of(len(tree))  # those of another drafter begin at 1 again
            if is_new and parent is not None and link(parent, token) not in taken:
                taken.add(link(parent, token))
                slots[node_id] = tree.add(parent, node_id, token, edge)
        return len(tree) - before + self._rescored(grow)

    def _rescored(self, grow: Grow) -> int:
        """Give nodes their new edges: how many of them are there."""
        found = dict(zip(map(self.tree.find, grow.rescored), grow.new_edges, strict=True))
        edges = {slot: edge for slot, edge in found.items() if slot}  # neither the root nor what is gone
        self.tree.rescore(np.array([*edges], dtype=np.int64), np.array([*edges.values()], dtype=np.float64))
        return len(edges)

    def growing(self) -> Snapshot:
        """Draw the tree as it waits for the next step."""
        return self._snapshot({ROOT: "root"})

    def _snapshot(self, states: Mapping[int, str]) -> Snapshot:
        """Draw the tree with these states by slot: root, accepted, rejected or bonus; all others are drafted."""
        tree, places = self.tree, _worth_showing(self.tree, states)
        slots = [*places]
        columns = zip(slots, *tree.columns(slots).tolist(), np.exp(tree.log_survivals(slots)).tolist(), strict=True)
        nodes = [
            {
                "key": f"n{node_id}" if node_id else f"t{position}",  # the same in every snapshot of the same token
                "parent": places.get(parent, -1),
                "text": self._piece(token),
                "survival": round(survival, 4) if node_id or slot == ROOT else None,
                "state": states.get(slot, "drafted"),
            }
            for slot, node_id, token, parent, position, survival in columns
        ]
        return {"nodes": nodes, "hidden": len(tree) + 1 - len(nodes)}


def _tree(step: WatchedStep) -> TokenTree:
    """Make the tree that a step tells, which the wire has held to the shape of one."""
    tree = TokenTree(step.tokens[0], step.root_position)
    tree.name_root(step.ids[0])
    ids, parents, tokens = np.array((step.ids, step.parents, step.tokens), dtype=np.int64)[:, 1:]
    tree.extend(ids, parents, tokens, np.array(step.edges[1:], dtype=np.float64))
    return tree


def _worth_showing(tree: TokenTree, states: Mapping[int, str]) -> dict[int, int]:
    """Choose what has a state, and the likeliest of the others: their slots where their parents are shown, and where they will stand."""
    worth, count = tree.scores.copy(), max(NODES_SHOWN, len(states))
    worth[[*states]] = np.inf
    places: dict[int, int] = {}
    for slot in sorted(likeliest(np.arange(len(worth)), worth, count)[:count].tolist()):
        if slot == ROOT or tree.parents[slot] in places:
            places[slot] = len(places)
    return places


def watch(
    tokenizer: Tokenizer, client: VerifierClient, requests: RequestLog, number: int
) -> AsyncGenerator[Snapshot, None] | None:
    """What is to be seen of the request with this number; None if it is not known."""
    request = requests.find(number)
    return None if request is None else Watch(tokenizer, client, request).snapshots()


class Watch:
    """One watcher of one request."""

    def __init__(self, tokenizer: Tokenizer, client: VerifierClient, request: LoggedRequest) -> None:
        self._client = client
        self._request = request
        self._speculation = Speculation(tokenizer.piece)
        self._detokenizer = tokenizer.detokenizer()
        self._stepped = asyncio.Event()
        self._news = asyncio.Event()
        self._step: Snapshot | None = None
        self._text: list[tuple[str, bool]] = []
        self._steps_left_out = 0
        self._last_shown = -1
        """Position of the last token whose text was shown."""

    async def snapshots(self) -> AsyncGenerator[Snapshot, None]:
        """Yield snapshots until the request ends; the last says how. Raises its error, or SpecsplitError if its verifier cannot tell."""
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
        """Take in what its verifier tells, and the next one if it goes on there. Raises what the request failed with."""
        while self._request.ending is None:
            if self._request.verifier is not None:
                await self._read_from(self._request.verifier)
            await asyncio.sleep(LOOK_S)
        if isinstance(failure := self._request.ending.failure, SpecsplitError):
            raise failure

    async def _read_from(self, verifier: MemberState) -> None:
        # Its Decode call may not be there yet, or over already; and with a verifier that is lost the request need not end.
        with suppress(NotFound, Unavailable):
            async with aclosing(self._client.watch(verifier, self._request.request_id)) as events:
                async for event, missed in events:
                    self._take_in(event, missed)

    def _take_in(self, event: Watched, missed: int) -> None:
        if isinstance(event, Grow):
            if self._speculation.grown(event):
                self._news.set()
            return
        self._steps_left_out += missed + (self._step is not None)
        self._step = {"kind": "step", **_facts(event), **self._speculation.step(event)}
        tokens = [*(event.tokens[i] for i in event.accepted[1:]), event.bonus][: event.committed]
        for place, token in enumerate(tokens, 1):
            if (
                event.root_position + place > self._last_shown
            ):  # else it was of the verifier before, which this one has to repeat
                self._text.append((self._detokenizer.feed((token,)), place < len(event.accepted)))
        self._last_shown = max(self._last_shown, event.root_position + len(tokens))
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
        "no_drafts": None if step.no_drafts is None else step.no_drafts.sentence,
    }


def sentence(error: SpecsplitError) -> Snapshot:
    """The last snapshot of a session that cannot be watched any more."""
    return {"kind": "end", "text": [], "why": str(error)}

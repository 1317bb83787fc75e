"""Where one session's rows lie in one KV pool: its own map of tokens to slots.

Every token of a session has a slot of its own (pages of one), so that a tree costs no copying: an expanded node keeps its slot for
life; if it is accepted, the slot is appended to the context's table, and if it dies, the slot goes back to the pool.

    context   the committed tokens from position `first` on, root included; `computed` of them, from the front, have their KV
    tree      expanded nodes below the root; all of them have their KV but those that are `missing`

A node has its KV only if its parent has (where it has a row here). So of an accepted path the part with KV comes first and is taken
over, and the rest (the bonus at the latest) is pending and computed with the next forward: that is draft extend. A prompt is pending
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from specsplit.model.batch import Mask, Row
from specsplit.model.pages import PagePool, PageTable, Slots
from specsplit_drafter.proposer import Advance, FrontierNode

CONTEXT_RESERVE: Final = 8
"""Slots per session that nodes leave free for committed tokens."""


@dataclass(slots=True)
class _Node:
    slot: int
    parent: int
    index: int
    """Place among the tree's nodes, in order of arrival."""
    lineage: int
    """Bit i is set if the node at place i is this one or above it."""


class TokenMap:
    """One session in one pool, whose pages must be of one slot.

    first: position of the token that row 0 is of; tokens before it have no row here. exact: the row of an accepted node is what its row
    as a committed token would be, and need not be computed again.
    """

    def __init__(self, pool: PagePool, first: int = 0, exact: bool = True) -> None:
        self.first: Final = first
        self.computed = 0
        """Rows of the context, from the front, that have their KV."""
        self.missing: list[FrontierNode] = []
        """Nodes with a slot, but no KV yet, parents before children."""
        self._pool = pool
        self._exact = exact
        self._table = PageTable(pool)
        self._root = 0
        self._tree: dict[int, _Node] = {}
        """By id, in order of arrival: parents before children."""

    def __contains__(self, node: int) -> bool:
        """True if the tree has this node."""
        return node in self._tree

    @property
    def pending(self) -> int:
        """Rows of the context without KV."""
        return len(self._table) - self.computed

    def reserve(self, num_tokens: int) -> None:
        """Slots for a context of so many committed tokens, from position 0. Raises OutOfPages."""
        self._table.reserve(max(0, num_tokens - self.first))

    def commit(self, advance: Advance, num_tokens: int) -> None:
        """Take over the slots of accepted nodes, free those of the dead, take new ones for the rest of `num_tokens`. Raises OutOfPages."""
        path = [*advance.accepted, advance.root] if advance.root else advance.accepted
        missing = {node.node for node in self.missing}
        accepted = [node for node in path if node in self._tree]
        self._table.adopt(np.array([self._tree.pop(node).slot for node in accepted], dtype=np.int64))
        if self._exact:
            self.computed += sum(node not in missing for node in accepted)
        self._free(node.slot for node_id, node in self._tree.items() if node_id not in advance.survivors)
        self._keep([entry for entry in self._tree.items() if entry[0] in advance.survivors])
        self.missing = [node for node in self.missing if node.node in advance.survivors]
        self._root = advance.root
        self.reserve(num_tokens)

    def read(self, tokens: Sequence[int], stop: int, logits_at: Sequence[int] = ()) -> Row:
        """The pending rows of the context before position `stop`, which are computed from now on; `tokens` are all committed ones."""
        done = stop - self.first
        row = Row.chunk(tokens[self.first + self.computed : stop], self._table.slots(0, done), logits_at)
        self.computed = done
        return row

    def add(self, nodes: Iterable[FrontierNode]) -> None:
        """Nodes to be expanded, after their parents (where those have a row here). They are missing until `branch`. Raises OutOfPages."""
        new = list(nodes)
        for node, slot in zip(new, self._pool.allocate(len(new)).tolist(), strict=True):
            index, parent = len(self._tree), self._tree.get(node.parent)
            lineage = (parent.lineage if parent else 0) | 1 << index
            self._tree[node.node] = _Node(slot, node.parent, index, lineage)
        self.missing += new

    def branch(self, logits_at: Sequence[int] = ()) -> Row:
        """The missing nodes (at least one), which are so no longer. The whole context must be read before them, or in the same forward."""
        nodes, self.missing = self.missing, []
        found = [self._tree[node.node] for node in nodes]
        tree_slots = np.fromiter((node.slot for node in self._tree.values()), np.int64, len(self._tree))
        return Row(
            tokens=[node.token for node in nodes],
            positions=np.array([node.position - self.first for node in nodes], dtype=np.int64),
            write_slots=np.array([node.slot for node in found], dtype=np.int64),
            kv_slots=np.concatenate([self._table.slots(0, len(self._table)), tree_slots]),
            tail_mask=_lineage_mask([node.lineage for node in found], len(self._tree)),
            logits_at=logits_at,
        )

    def context_slots(self, start: int, stop: int) -> Slots:
        """Slots of rows start <= i < stop of the context, int64 [stop - start]: a view, to be read before the next change."""
        return self._table.slots(start, stop)

    def slots_of(self, nodes: Iterable[int]) -> Slots:
        """Slots of nodes by id [n]; the root's for its id or 0."""
        last = len(self._table)
        root = int(self._table.slots(last - 1, last)[0]) if last else 0
        return np.array([root if node in (0, self._root) else self._tree[node].slot for node in nodes], dtype=np.int64)

    def release(self) -> None:
        """Free every slot."""
        self._table.release()
        self._free(node.slot for node in self._tree.values())
        self._tree = {}

    def _keep(self, survivors: Iterable[tuple[int, _Node]]) -> None:
        """Let only these nodes, in order of arrival, live on: their places move up."""
        self._tree = {}
        for index, (node_id, node) in enumerate(survivors):
            parent = self._tree.get(node.parent)
            lineage = (parent.lineage if parent else 0) | 1 << index
            self._tree[node_id] = _Node(node.slot, node.parent, index, lineage)

    def _free(self, slots: Iterable[int]) -> None:
        self._pool.release(np.fromiter(slots, np.int64))


def room(pool: PagePool, num_sessions: int) -> int:
    """Free slots, less a few that committed tokens will need: a tree must never end drafting for its own session."""
    return max(0, pool.free_pages - CONTEXT_RESERVE * num_sessions)


def _lineage_mask(lineages: Sequence[int], width: int) -> Mask:
    """Bits of each lineage as bool [n, width]."""
    num_bytes = (width + 7) // 8
    packed = np.frombuffer(b"".join(lineage.to_bytes(num_bytes, "little") for lineage in lineages), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(lineages), num_bytes), axis=1, count=width, bitorder="little")
    return bits.view(np.bool_)

"""The map of one session's tokens to slots of one KV pool.

Every token of a session has a slot of its own (pages of one), so that a tree costs no copying: an expanded node keeps its slot for
life; if it is accepted, the slot is appended to the context's table, and if it dies, the slot goes back to the pool.

    context   the committed tokens from position `first` on, root included; `computed` of them, from the front, have their KV
    tree      expanded nodes below the root; all of them have their KV but those that are `uncomputed`

The slot of a node is a column of the session's tree. A node has its KV only if its parent has (where it has a row here). So of an
accepted path the part with KV comes first and is taken over, and the rest (the bonus at the latest) is pending and computed with the
next forward: that is draft extend. A prompt is pending in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from specsplit.model.pages.batch import Mask, Row
from specsplit.model.pages.pool import PagePool, PageTable
from specsplit.model.pages.tables import RowPages, Slots
from specsplit.tree import ROOT, Flags, Ints, TokenTree
from specsplit_drafter.drafts.proposer import AppliedCommit

CONTEXT_RESERVE: Final = 8
"""Slots per session that nodes leave free for committed tokens."""
_NO_SLOT: Final = -1
_NO_NODES: Final[Ints] = np.empty(0, dtype=np.int64)


class TokenMap:
    """One session in one pool, whose pages must be of one slot. Nodes are named by their places in the session's tree.

    first: position of the token of row 0; tokens before it have no row here. exact: the row of an accepted node equals its row as a
    committed token, so that it need not be computed again.
    """

    def __init__(self, pool: PagePool, tree: TokenTree, first: int = 0, exact: bool = True) -> None:
        self.first: Final = first
        self.computed = 0
        """Rows of the context, from the front, that have their KV."""
        self.uncomputed: Ints = _NO_NODES
        """Nodes with a slot, but no KV yet."""
        self._provisional: Slots = _NO_NODES
        """Slots of the levels that are drawn below a frontier, until `assign_levels`."""
        self._pool = pool
        self._tree = tree
        self._exact = exact
        self._table = PageTable(pool)
        self._slots = tree.attach(np.int64, _NO_SLOT, remembers=True)

    @property
    def has_slot(self) -> Flags:
        """For each place in the tree: true if the node there has a slot."""
        return self._slots.data[: len(self._tree) + 1] != _NO_SLOT

    @property
    def pending(self) -> int:
        """Rows of the context without KV."""
        return len(self._table) - self.computed

    def reserve(self, num_tokens: int) -> None:
        """Take slots for a context of so many committed tokens, from position 0. Raises OutOfPages."""
        self._table.reserve(max(0, num_tokens - self.first))

    def release_unseen(self) -> None:
        """Free the slots of committed tokens that no token to come sees, in any layer."""
        if self._pool.window is not None and self.computed:
            self._table.release_before(self._pool.first_seen(self.computed))

    def commit(self, applied: AppliedCommit) -> None:
        """Take over the slots of accepted nodes and free those of the dead. `reserve` must follow."""
        before, path = self._slots.before, applied.path
        own = before.take(path)
        own = own.compress(own != _NO_SLOT)
        self._table.adopt(own)
        if self._exact:
            self.computed += len(own) - len({*path} & {*self.uncomputed.tolist()})
        before[path] = _NO_SLOT
        dead = before if applied.new_slots is None else before.compress(applied.new_slots < 0)
        self._pool.release(dead.compress(dead != _NO_SLOT))
        self._slots.data[ROOT] = _NO_SLOT  # it is the context's now
        alive = _NO_NODES if applied.new_slots is None else applied.new_slots.take(self.uncomputed)
        self.uncomputed = alive.compress(alive > ROOT)

    def context_row(self, tokens: Sequence[int], stop: int, logits_at: Sequence[int] = ()) -> Row:
        """Make the row of the pending tokens before position `stop`, which count as computed then. `tokens`: all committed ones."""
        done = stop - self.first
        row = Row.chunk(tokens[self.first + self.computed : stop], self._table.upto(done), logits_at)
        self.computed = done
        return row

    def add_nodes(self, nodes: Ints) -> None:
        """Give nodes that are to be expanded slots, if they have none. They are uncomputed until `node_row`. Raises OutOfPages."""
        new = nodes.compress(self._slots.data.take(nodes) == _NO_SLOT)
        self._slots.data[new] = self._pool.allocate(len(new))
        self.uncomputed = np.concatenate((self.uncomputed, nodes))

    def node_row(self, logits_at: Sequence[int] = ()) -> Row:
        """Make the row of the uncomputed nodes (at least one), which count as computed then.

        The whole context must be read before them, or in the same forward.
        """
        nodes, self.uncomputed = self.uncomputed, _NO_NODES
        seen, mask = self._paths(nodes)
        return Row(
            tokens=self._tree.tokens.take(nodes),
            positions=self._tree.positions.take(nodes) - self.first,
            pages=self._table.upto(len(self._table) + len(seen), self._slots.data.take(seen)),
            tail_mask=mask,
            logits_at=logits_at,
        )

    def allocate_levels(self, levels: int, width: int) -> Slots:
        """Take slots [levels, width] for the levels below a frontier, until `assign_levels`. Raises OutOfPages."""
        self._free_provisional(_NO_NODES)
        self._provisional = self._pool.allocate(levels * width).reshape(levels, width)
        return self._provisional

    def assign_levels(self, levels: Sequence[Ints]) -> None:
        """Assign the slots of every level that was allocated to its nodes [n], whose KV they hold; -1: to none. All others are freed.

        The slots that these nodes had before are freed too.
        """
        nodes = np.full(self._provisional.shape, -1, dtype=np.int64)
        for row, slots in zip(nodes, levels, strict=False):  # levels without any node are left out
            row[: len(slots)] = slots
        taken = nodes >= 0
        before = self._slots.data.take(nodes[taken])
        self._slots.data[nodes[taken]] = self._provisional[taken]
        self._provisional = self._provisional[~taken]
        self._free_provisional(before.compress(before != _NO_SLOT))

    def _free_provisional(self, more: Slots) -> None:
        """Free the slots of levels that are assigned to no node, and `more`."""
        self._pool.release(np.concatenate((self._provisional.reshape(-1), more)))
        self._provisional = _NO_NODES

    def visible_nodes(self, nodes: Ints) -> tuple[Slots, Mask]:
        """Look up the slots [E] of the nodes on the paths to these nodes, the root not counted; and which of them each node sees [n, E]."""
        below = (nodes != ROOT).nonzero()[0]
        if not len(below):
            return _NO_NODES, np.zeros((len(nodes), 0), dtype=np.bool_)
        seen, mask = self._paths(nodes.take(below))
        whole = np.zeros((len(nodes), len(seen)), dtype=np.bool_)
        whole[below] = mask
        return self._slots.data.take(seen), whole

    @property
    def context(self) -> RowPages:
        """The pages of the whole context."""
        return self._table.upto(len(self._table))

    def slots_of(self, nodes: Ints) -> Slots:
        """Look up the slots of nodes [n], the root among them."""
        last = len(self._table)
        slots = self._slots.data.take(nodes)
        slots[nodes == ROOT] = self._table.slots(last - 1, last) if last else 0
        return slots

    def context_slots(self, start: int, stop: int) -> Slots:
        """Look up the slots of rows start <= i < stop of the context, [stop - start]."""
        return self._table.slots(start, stop)

    def parent_slots(self, nodes: Ints) -> Slots:
        """Look up the slots of the parents of nodes [n], the root among them."""
        return self.slots_of(self._tree.parents.take(nodes))

    def _paths(self, nodes: Ints) -> tuple[Ints, Mask]:
        """List the nodes [E] with a row here on the paths to these nodes, these last; and which of them each node sees [n, E]."""
        paths = [self._tree.path(node) for node in nodes.tolist()]
        whose = np.arange(len(paths)).repeat([len(path) for path in paths])
        above = np.fromiter(chain.from_iterable(paths), np.int64, len(whose))
        held = self._slots.data.take(above) != _NO_SLOT
        whose, above = whose.compress(held), above.compress(held)
        flags = np.zeros(len(self._tree) + 1, dtype=np.bool_)
        flags[above] = True
        flags[nodes] = False
        seen = np.concatenate((flags.nonzero()[0], nodes))
        columns = np.empty(len(flags), dtype=np.int64)
        columns[seen] = np.arange(len(seen))
        mask = np.zeros((len(paths), len(seen)), dtype=np.bool_)
        mask[whose, columns.take(above)] = True
        return seen, mask

    def release(self) -> None:
        """Free every slot."""
        self._table.release()
        self._free_provisional(_NO_NODES)
        slots = self._slots.data[: len(self._tree) + 1]
        self._pool.release(slots.compress(slots != _NO_SLOT))
        slots[:] = _NO_SLOT


def free_kv_slots(pool: PagePool, num_sessions: int) -> int:
    """Count free KV slots, less a few that committed tokens will need: a tree must never end drafting for its own session."""
    return max(0, pool.free_pages - CONTEXT_RESERVE * num_sessions)

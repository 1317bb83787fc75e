"""The verifier's side: a copy of the speculation that lags behind the original by what is on the wire, and never by more.

Grow and commit may cross. A grow that arrives may hang below tokens that have been committed meanwhile; whether it is still of use
depends on whether it follows them. So the mirror remembers the committed path since the last commit that the drafter is known to have
seen (the *trail*): a late node that follows the trail gives the committed token there its id, and what hangs below the root after
that survives; a late node that leaves the trail is dropped without a word. After both streams drain, mirror and original are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Final, NoReturn

import numpy as np

from specsplit.speculation.events import Commit, Draft, Grow
from specsplit.speculation.states import Event, Side, State, StateMachine
from specsplit.speculation.trail import Trail
from specsplit.tree import LEAST_EDGE, ROOT, Ints, TokenTree, are_edges, link

MAX_ID: Final = 2**63 - 1
BULK_FROM: Final = 32
"""From so many nodes on it is faster to hang them at once than one by one."""


class Mirror:
    """One session's speculation as the verifier knows it. Holds at most `max_nodes` live nodes, root not counted."""

    def __init__(self, session: int, root_token: int, root_position: int, max_nodes: int, vocab_size: int) -> None:
        self._machine = StateMachine(session, Side.MIRROR)
        self.tree = TokenTree(root_token, root_position)
        self.max_nodes = max_nodes
        self.vocab_size = vocab_size
        self.commits = 0
        self._untold = 0
        """Commits that the drafter has not been sent yet."""
        self.resting = False
        """True if the drafter said that nothing more will come before the next commit, and has not been stirred since."""
        self.caught_up = False
        """True if a grow made after the last commit has arrived."""
        self.seen = 0
        """Highest id of a node that has come, dropped ones included."""
        self._preview: tuple[tuple[int, int, int], Draft] | None = None
        self._trail = Trail(root_token)

    @property
    def state(self) -> State:
        """State of the protocol on this side."""
        return self._machine.state

    @property
    def acknowledged(self) -> int:
        """Number of the latest commit that the drafter is known to have applied."""
        return self._trail.commits

    def grow(self, grow: Grow) -> int:
        """Apply a grow; returns how many of its nodes are live now (late ones are dropped).

        Raises IllegalEvent, with nothing changed beyond the nodes before the offending one, if the drafter broke the protocol: commits
        from the future or the past, ids not ascending, a token outside the vocabulary, a bad edge, the same (parent, token) twice, more
        than max_nodes, or another edge for a node that was never grown.
        """
        self._machine.advance(Event.GROW)
        if self.state is State.CLOSED:
            return 0
        self._acknowledge(grow.commits)
        self._preview = None
        live_before = len(self.tree)
        if grow.ids and (len(grow.ids) < BULK_FROM or not self._grow_bulk(grow)):
            self._grow_one_by_one(grow)
        if grow.rescored:
            self._rescore(grow)
        if grow.commits == self.commits - self._untold:
            self.caught_up = True
            self.resting = grow.resting
        return len(self.tree) - live_before

    def _grow_bulk(self, grow: Grow) -> bool:
        """Apply a long grow with nothing unusual in it. False, and nothing has changed, if it must be looked at in order."""
        if not self.seen < grow.ids[0] <= grow.ids[-1] <= MAX_ID:
            return False
        if len(self._trail.tokens) > 1 and 0 in grow.parents:
            return False  # an earlier root was meant
        count = len(grow.ids)
        columns = (grow.ids, grow.parents, grow.tokens)
        try:
            ids, parents, tokens = (
                np.fromiter(each, np.int64, len(each)) for each in columns
            )  # twice as fast as np.array
        except OverflowError:  # the wire's numbers have 64 bits, ours 63
            return False
        edges = np.fromiter(grow.edges, np.float64, len(grow.edges))
        if (
            np.count_nonzero(ids[1:] > ids[:-1]) < count - 1
            or np.count_nonzero((parents < ids) & (parents >= 0)) < count
            or np.count_nonzero((tokens < self.vocab_size) & (tokens >= 0)) < count
            or len(self.tree) + count > self.max_nodes
        ):
            return False
        slots = self._slots_of_parents(ids, parents)
        if slots is None or not self.tree.extend(ids, slots, tokens, edges):
            return False
        self.seen = grow.ids[-1]
        return True

    def _slots_of_parents(self, ids: Ints, parents: Ints) -> Ints | None:
        """Look up the slots of the parents of these nodes; None if one is neither live nor the root nor among the nodes."""
        return self.tree.find_all(np.where(parents == 0, self.tree.root_id, parents), ids)

    def _grow_one_by_one(self, grow: Grow) -> None:
        """Apply a grow node by node. Of most late ones nothing is known but that their parents are gone, so they cost a look each."""
        tree, trail_ids, free_nodes, known = self.tree, self._trail.ids, self.max_nodes - len(self.tree), self.seen
        found = ((parent_id, self._slot(parent_id)) for parent_id in set(grow.parents) if parent_id <= known)
        slots = {parent_id: slot for parent_id, slot in found if slot is not None}
        links, valid = tree.links_below(slots.values()), self._count_valid(grow)
        nodes = zip(grow.ids, grow.parents, grow.tokens, grow.edges, strict=True)
        for node_id, parent_id, token, edge in islice(nodes, valid):
            self.seen = node_id
            parent = slots.get(parent_id)
            if parent is None:  # late: its parent is gone, or has been committed
                if (parent_id in trail_ids or parent_id == 0) and self._place_late(node_id, parent_id, token):
                    slots[node_id] = ROOT
                continue
            new = link(parent, token)
            if new in links or free_nodes <= 0:
                self._refuse_node(parent, token)
            free_nodes -= 1
            links.add(new)
            slots[node_id] = tree.add(parent, node_id, token, edge)
        for node in nodes:
            self._refuse_invalid(*node)

    def _count_valid(self, grow: Grow) -> int:
        """Count the nodes before the first that no tree could hold, whatever is in it."""
        ids, parents, tokens, edges = grow.ids, grow.parents, grow.tokens, grow.edges
        if (
            self.seen < ids[0] <= ids[-1] <= MAX_ID
            and all(map(lt, ids, ids[1:]))
            and all(map(lt, parents, ids))
            and min(parents) >= 0
            and 0 <= min(tokens) <= max(tokens) < self.vocab_size
            and min(edges) >= LEAST_EDGE
            and max(edges) <= 0.0
            and sum(edges) <= 0.0  # so there is no NaN
        ):
            return len(ids)
        last = self.seen
        for number, (node_id, parent_id, token, edge) in enumerate(zip(ids, parents, tokens, edges, strict=True)):
            if not last < node_id > parent_id >= 0 or not 0 <= token < self.vocab_size or node_id > MAX_ID:
                return number
            if not LEAST_EDGE <= edge <= 0.0:
                return number
            last = node_id
        return len(ids)

    def _rescore(self, grow: Grow) -> None:
        """Give nodes other edges. Those that are gone or committed are let pass."""
        ids, edges = grow.rescored, grow.new_edges
        if not 0 < ids[0] <= ids[-1] <= self.seen or not all(map(lt, ids, ids[1:])):
            self._machine.refuse(
                Event.GROW, f"rescored_ids: do not ascend from 1 to at most {self.seen}, the last grown"
            )
        if len(ids) < BULK_FROM:
            self._rescore_one_by_one(ids, edges)
            return
        wanted, changed = np.fromiter(ids, np.int64, len(ids)), np.fromiter(edges, np.float64, len(edges))
        if not are_edges(changed):
            self._refuse_edge("new_edges", _first_invalid(edges))
        known = self.tree.ids
        slots = np.minimum(known.searchsorted(wanted), len(known) - 1)
        live = (known.take(slots) == wanted) & (slots > ROOT)
        self.tree.rescore(slots.compress(live), changed.compress(live))

    def _rescore_one_by_one(self, ids: Sequence[int], edges: Sequence[float]) -> None:
        if not all(LEAST_EDGE <= edge <= 0.0 for edge in edges):
            self._refuse_edge("new_edges", _first_invalid(edges))
        slots = [self.tree.find(node_id) for node_id in ids]
        live = [(slot, edge) for slot, edge in zip(slots, edges, strict=True) if slot]  # neither None nor the root
        self.tree.rescore([slot for slot, _ in live], [edge for _, edge in live])

    def _slot(self, parent_id: int) -> int | None:
        """Look up the slot of a parent by id; None if it is neither live nor the root."""
        index = 0 if parent_id == 0 else self._trail.ids.get(parent_id)
        if index is None:
            return self.tree.find(parent_id)
        return ROOT if index == self._trail.last else None

    def _place_late(self, node_id: int, parent_id: int, token: int) -> bool:
        """Place a late node below the trail: the token there gets its id, or the node is dropped. Tell whether it is the root."""
        index = 0 if parent_id == 0 else self._trail.ids[parent_id]
        if self._trail.tokens[index + 1] != token:
            return False  # it left the committed path
        if not self._trail.name(index + 1, node_id):
            self._machine.refuse(Event.GROW, f"node {parent_id} already has a child with token {token}")
        if index + 1 < self._trail.last:
            return False
        self.tree.name_root(node_id)
        return True

    def _refuse_invalid(self, node_id: int, parent: int, token: int, edge: float) -> NoReturn:
        if node_id <= self.seen:
            self._machine.refuse(Event.GROW, f"ids: {node_id} is not above {self.seen}")
        if not 0 <= parent < node_id:
            self._machine.refuse(Event.GROW, f"parents: {parent} is not 0 or an id below {node_id}")
        if node_id > MAX_ID:
            self._machine.refuse(Event.GROW, f"ids: {node_id} is above {MAX_ID}")
        if not 0 <= token < self.vocab_size:
            self._machine.refuse(Event.GROW, f"token_ids: {token} is outside the vocabulary of {self.vocab_size}")
        self._refuse_edge("edges", edge)

    def _refuse_edge(self, field: str, edge: float) -> NoReturn:
        self._machine.refuse(Event.GROW, f"{field}: {edge} is not in {LEAST_EDGE:g}..0")

    def _refuse_node(self, parent: int, token: int) -> NoReturn:
        if self.tree.child(parent, token) is not None:
            self._machine.refuse(Event.GROW, f"node {self.tree.id_of(parent)} already has a child with token {token}")
        self._machine.refuse(Event.GROW, f"more than {self.max_nodes} live nodes")

    def _acknowledge(self, commits: int) -> None:
        """Forget the trail before the root of commit number `commits`, which the drafter has seen."""
        if not self.acknowledged <= commits <= self.commits:
            self._machine.refuse(Event.GROW, f"commits: is {commits}, expected {self.acknowledged}..{self.commits}")
        self._trail.forget(commits)

    def mark_busy(self) -> None:
        """Forget that the drafter rests: it was sent what it lacked (features), and its answer is to come."""
        if self.resting:
            self.resting = self.caught_up = False

    def keep_back(self, *, rested: bool) -> None:
        """Note that the drafter is not sent the last commit now. `rested`: it rested before that, and does so still."""
        self._untold += 1
        self.resting = self.caught_up = rested

    def release(self) -> None:
        """Note that the drafter is sent what was kept back; its answer is to come."""
        self._untold, self.resting, self.caught_up = 0, False, False

    def preview(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        """Choose what `take` would take now. It is remembered until something changes: a commit and the step after both ask."""
        wish = (num_draft_tokens, topk, num_steps)
        if self._preview is None or self._preview[0][1:] != wish[1:] or self._preview[0][0] < num_draft_tokens:
            self._preview = wish, self._best(*wish)
        return self._preview[1].first(num_draft_tokens)

    def _best(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        if not len(self.tree):
            return Draft([self.tree.root_id], [self.tree.token_of(ROOT)], [-1], [self.tree.root_position], [0.0])
        slots = self.tree.best(num_draft_tokens, topk, num_steps)
        ids, tokens, parents, positions, log_survivals = self.tree.listed(slots)
        index = {slot: i for i, slot in enumerate(slots)}
        index[-1] = -1
        return Draft(ids, tokens, [index[parent] for parent in parents], positions, log_survivals)

    def take(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        """Take the best nodes for a step, which is in flight from now until `commit`."""
        draft = self.preview(num_draft_tokens, topk, num_steps)
        self._machine.advance(Event.TAKE)
        return draft

    def __len__(self) -> int:
        """Live nodes, root not counted."""
        return len(self.tree)

    def has_nodes_below(self, draft: Draft, path: Sequence[int]) -> bool:
        """Tell whether something hangs below the last node of `path` (indices into `draft`, root first)."""
        return self.tree.has_children(self._deepest(draft, path))

    def listed(self) -> tuple[list[int], list[int], list[int], list[float]]:
        """(ids, indices of parents, tokens, edges) of the root and every node, parents before children; -1 is the root's parent."""
        tree = self.tree
        return tree.ids.tolist(), tree.parents.tolist(), tree.tokens.tolist(), tree.edges.tolist()

    def _deepest(self, draft: Draft, path: Sequence[int]) -> int:
        return self.tree.slot(draft.ids[path[-1]]) if len(path) > 1 else ROOT

    def commit(self, draft: Draft, path: Sequence[int], bonus: int) -> tuple[Commit, bool]:
        """Reroot to `bonus` behind the accepted `path` (indices into `draft`, root first): the event to send, and whether it was a hit."""
        self._machine.advance(Event.COMMIT)
        accepted = [draft.ids[i] for i in path[1:]]
        tokens = (*[draft.tokens[i] for i in path[1:]], bonus)
        hit = self.tree.reroot(self._deepest(draft, path), bonus) is not None
        self._preview = None
        self.commits += 1
        self._trail.extend([*accepted, self.tree.root_id], tokens)
        self.resting = self.caught_up = False
        return Commit(self.commits, accepted[-1] if accepted else 0, tokens), hit

    def close(self) -> None:
        """End the session here; what the drafter had in flight is let pass."""
        self._machine.advance(Event.CLOSE)


def _first_invalid(edges: Sequence[float]) -> float:
    """The first that is no edge."""
    return next(edge for edge in edges if not LEAST_EDGE <= edge <= 0.0)

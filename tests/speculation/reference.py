"""The tree and the mirror with an object for every node: what the arrays must equal, step by step.

They were what specsplit had before the trees were kept in arrays, and are read more easily; nothing else uses them.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from typing import NoReturn

from specsplit.speculation import Commit, Draft, Event, Grow, Side, State
from specsplit.speculation.states import StateMachine
from specsplit.tree import LEAST_EDGE
from specsplit.tree.edges import rounded


class Node:
    """One drafted token, or the root."""

    # By hand, and not as a dataclass: a verifier makes a few hundred in every step.
    __slots__ = ("children", "edge", "id", "parent", "position", "ranked", "token")

    def __init__(self, id: int, token: int, edge: float, position: int, parent: Node | None = None) -> None:  # noqa: A002
        self.id = id
        """0 for a root that was never a node."""
        self.token = token
        self.edge = edge
        self.position = position
        """Index of the token in the session's whole sequence, from 0."""
        self.parent = parent
        self.children: dict[int, Node] = {}
        """By token: a parent never has the same token twice."""
        self.ranked: list[Node] = []
        """The children, likeliest first; of equals the first to come."""

    @property
    def log_survival(self) -> float:
        """Log of the estimated probability that it is accepted, given the root."""
        return self.parent.log_survival + self.edge if self.parent is not None else 0.0

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one; empty for the root."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def descendants(self) -> Iterator[Node]:
        """Every node below this one, level by level."""
        level = [self]
        while level := [child for node in level for child in node.ranked]:
            yield from level


class TokenTree:
    """A root and the live nodes below it."""

    def __init__(self, token: int, position: int) -> None:
        self.root = Node(0, token, 0.0, position)
        self.nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        """Live nodes, root not counted."""
        return len(self.nodes)

    def add(self, parent: Node, node_id: int, token: int, edge: float) -> Node:
        """Hang a node below `parent`, which must be live and must not have a child with that token yet."""
        node = Node(node_id, token, rounded(edge), parent.position + 1, parent)
        parent.children[token] = node
        insort(parent.ranked, node, key=_rank)
        self.nodes[node_id] = node
        return node

    def rescore(self, node: Node, edge: float) -> None:
        """Give a node another edge."""
        node.edge = rounded(edge)
        assert node.parent is not None
        node.parent.ranked.sort(key=_rank)

    def reroot(self, deepest: Node, bonus: int) -> bool:
        """Make the child of `deepest` with token `bonus` the root; a fresh root if there is none. True if there was one (a hit)."""
        heir = deepest.children.pop(bonus, None)
        if heir is not None:
            deepest.ranked.remove(heir)
        _uproot(self.root)
        if heir is None:
            self.root = Node(0, bonus, 0.0, deepest.position + 1)
            self.nodes = {}
            return False
        heir.parent = None
        self.root = heir
        self.nodes = {node.id: node for node in heir.descendants()}
        return True

    def best(self, count: int, topk: int, depth: int) -> list[Node]:
        """The root and the best-scored nodes, `count` in all at most, parents before children.

        At most `topk` children of one node and `depth` levels below the root are considered. A child never outscores its parent, so
        taking the best one at a time from the frontier is optimal (the argument of EAGLE-2, arXiv 2406.16858).
        """
        taken = [self.root]
        limit = self.root.position + depth
        frontier: list[tuple[float, int, list[Node], int]] = []
        newest = self.root
        while len(taken) < count:
            if newest.position < limit and newest.ranked:
                _offer(frontier, newest.ranked, 0)
            if not frontier:
                break
            _, _, siblings, place = heapq.heappop(frontier)
            newest = siblings[place]
            taken.append(newest)
            if place + 1 < min(topk, len(siblings)):
                _offer(frontier, siblings, place + 1)
        return taken

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, int, float]]]:
        """(root id, root token, {id: (parent id, token, edge)}): equal for equal trees."""
        described = {n.id: (n.parent.id if n.parent else 0, n.token, n.edge) for n in self.nodes.values()}
        return self.root.id, self.root.token, described


def _rank(child: Node) -> tuple[float, int]:
    return -child.edge, child.id


def _uproot(root: Node) -> None:
    """Take a dead tree apart: free of cycles its nodes are free at once, and none waits for the garbage collector."""
    inner = [root]
    while inner:
        below = [child for node in inner for child in node.ranked if child.ranked]
        for node in inner:
            node.children, node.ranked = {}, []
        inner = below


def _offer(frontier: list[tuple[float, int, list[Node], int]], siblings: list[Node], place: int) -> None:
    """Put one child on the heap; the next likeliest of its siblings follows when it is taken."""
    node = siblings[place]
    heapq.heappush(frontier, (-node.log_survival, node.id, siblings, place))


class Mirror:
    """One session's speculation as the verifier knows it. Holds at most `max_nodes` live nodes, root not counted."""

    def __init__(self, session: int, root_token: int, root_position: int, max_nodes: int, vocab_size: int) -> None:
        self._machine = StateMachine(session, Side.MIRROR)
        self.tree = TokenTree(root_token, root_position)
        self.max_nodes = max_nodes
        self.vocab_size = vocab_size
        self.commits = 0
        self.resting = False
        """True if the drafter said that nothing more will come before the next commit, and has not been stirred since."""
        self.caught_up = False
        """True if a grow made after the last commit has arrived."""
        self._last_id = 0
        self._preview: tuple[tuple[int, int, int], Draft] | None = None
        self._trail: list[Node] = [self.tree.root]
        self._trail_commits = 0  # the commit whose root is _trail[0]
        self._roots: list[int] = [0]  # index in _trail of the root of commit _trail_commits + i
        self._trail_ids: dict[int, int] = {}  # node id -> index in _trail

    @property
    def state(self) -> State:
        """Where the protocol stands."""
        return self._machine.state

    @property
    def acknowledged(self) -> int:
        """Number of the latest commit that the drafter is known to have applied."""
        return self._trail_commits

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
        nodes, live_before = self.tree.nodes, len(self.tree)
        for node_id, parent_id, token, edge in zip(grow.ids, grow.parents, grow.tokens, grow.edges, strict=True):
            if not self._last_id < node_id > parent_id >= 0 or not 0 <= token < self.vocab_size:
                self._refuse_number(node_id, parent_id, token)
            if not LEAST_EDGE <= edge <= 0.0:
                self._machine.refuse(Event.GROW, f"edges: {edge} is not in -1024..0")
            self._last_id = node_id
            parent = nodes.get(parent_id) or self._join(node_id, parent_id, token)
            if parent is None:
                continue
            if token in parent.children or len(nodes) >= self.max_nodes:
                self._refuse_node(parent, token)
            self.tree.add(parent, node_id, token, edge)
        self._rescore(grow)
        if grow.commits == self.commits:
            self.caught_up = True
            self.resting = grow.resting
        return len(self.tree) - live_before

    def _rescore(self, grow: Grow) -> None:
        if sorted(set(grow.rescored)) != list(grow.rescored) or any(not 0 < i <= self._last_id for i in grow.rescored):
            self._machine.refuse(
                Event.GROW, f"rescored_ids: do not ascend from 1 to at most {self._last_id}, the last grown"
            )
        for edge in grow.new_edges:
            if not LEAST_EDGE <= edge <= 0.0:
                self._machine.refuse(Event.GROW, f"new_edges: {edge} is not in -1024..0")
        for node_id, edge in zip(grow.rescored, grow.new_edges, strict=True):
            if node_id in self.tree.nodes:
                self.tree.rescore(self.tree.nodes[node_id], edge)

    def _refuse_number(self, node_id: int, parent: int, token: int) -> NoReturn:
        if node_id <= self._last_id:
            self._machine.refuse(Event.GROW, f"ids: {node_id} is not above {self._last_id}")
        if not 0 <= parent < node_id:
            self._machine.refuse(Event.GROW, f"parents: {parent} is not 0 or an id below {node_id}")
        self._machine.refuse(Event.GROW, f"token_ids: {token} is outside the vocabulary of {self.vocab_size}")

    def _refuse_node(self, parent: Node, token: int) -> NoReturn:
        if token in parent.children:
            self._machine.refuse(Event.GROW, f"node {parent.id} already has a child with token {token}")
        self._machine.refuse(Event.GROW, f"more than {self.max_nodes} live nodes")

    def _acknowledge(self, commits: int) -> None:
        """The drafter has seen commit number `commits`: forget the trail before that commit's root."""
        if not self._trail_commits <= commits <= self.commits:
            self._machine.refuse(Event.GROW, f"commits: is {commits}, expected {self._trail_commits}..{self.commits}")
        passed = commits - self._trail_commits
        if passed == 0:
            return
        cut = self._roots[passed]
        self._trail = self._trail[cut:]
        self._roots = [index - cut for index in self._roots[passed:]]
        self._trail_ids = {node.id: i for i, node in enumerate(self._trail) if node.id}
        self._trail_commits = commits

    def _join(self, node_id: int, parent_id: int, token: int) -> Node | None:
        """What a node hangs below whose parent is no live node: the root, or nothing if it is late.

        A late one that follows the committed path gives the token there its id.
        """
        index = 0 if parent_id == 0 else self._trail_ids.get(parent_id)
        if index is None:
            return None  # its parent is gone
        if index == len(self._trail) - 1:
            return self.tree.root
        follower = self._trail[index + 1]
        if follower.token != token:
            return None  # it left the committed path
        if follower.id:
            self._machine.refuse(Event.GROW, f"node {parent_id} already has a child with token {token}")
        follower.id = node_id
        self._trail_ids[node_id] = index + 1
        return None

    def mark_busy(self) -> None:
        """The drafter was sent what it lacked (features): if it said that it rests, that holds no longer, and its answer is to come."""
        if self.resting:
            self.resting = self.caught_up = False

    def preview(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        """What `take` would take now. Remembered until something changes: a commit asks for it, and so does the step after."""
        wish = (num_draft_tokens, topk, num_steps)
        if self._preview is None or self._preview[0] != wish:
            self._preview = wish, self._best(*wish)
        return self._preview[1]

    def _best(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        nodes = self.tree.best(num_draft_tokens, topk, num_steps)
        index = {id(node): i for i, node in enumerate(nodes)}
        return Draft(
            [node.id for node in nodes],
            [node.token for node in nodes],
            [-1, *(index[id(node.parent)] for node in nodes[1:])],
            [node.position for node in nodes],
            [node.log_survival for node in nodes],
        )

    def take(self, num_draft_tokens: int, topk: int, num_steps: int) -> Draft:
        """The best nodes for a step, which is in flight from now until `commit`."""
        draft = self.preview(num_draft_tokens, topk, num_steps)
        self._machine.advance(Event.TAKE)
        return draft

    def commit(self, draft: Draft, path: list[int], bonus: int) -> tuple[Commit, bool]:
        """Reroot to `bonus` behind the accepted `path` (indices into `draft`, root first): the event to send, and whether it was a hit."""
        self._machine.advance(Event.COMMIT)
        accepted = [self.tree.nodes[draft.ids[i]] for i in path[1:]]
        deepest = accepted[-1] if accepted else self.tree.root
        hit = self.tree.reroot(deepest, bonus)
        self._preview = None
        self.commits += 1
        self._extend_trail([*accepted, self.tree.root])
        self.resting = self.caught_up = False
        tokens = (*(node.token for node in accepted), bonus)
        return Commit(self.commits, deepest.id if accepted else 0, tokens), hit

    def _extend_trail(self, committed: list[Node]) -> None:
        for node in committed:
            if node.id:
                self._trail_ids[node.id] = len(self._trail)
            self._trail.append(node)
        self._roots.append(len(self._trail) - 1)

    def close(self) -> None:
        """End the session here; what the drafter had in flight is let pass."""
        self._machine.advance(Event.CLOSE)

"""Grow and commit cross on the wire in every way: the laws that must hold whatever the interleaving."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.speculation import Commit, Grow, Mirror, Original
from specsplit.tree import TokenTree
from tests.support.trees import NewNode, Node, Seen, grow_nodes

VOCAB = 4
MAX_NODES = 24


def best(tree: TokenTree, count: int, topk: int, depth: int) -> list[Node]:
    """What the tree takes, to look at."""
    nodes = {0: Seen(tree).root} | {tree.slot(node_id): node for node_id, node in Seen(tree).nodes.items()}
    return [nodes[slot] for slot in tree.best(count, topk, depth)]


class Wire:
    """One session's two sides, and two ordered queues between them."""

    def __init__(self) -> None:
        self.original = Original(7, root_token=0, root_position=3, max_nodes=MAX_NODES)
        self.mirror = Mirror(7, root_token=0, root_position=3, max_nodes=MAX_NODES, vocab_size=VOCAB)
        self.grows: deque[Grow] = deque()
        self.commits: deque[Commit] = deque()
        self.committed: list[int] = [0]
        self.seen_committed: list[int] = [0]

    def grow(self, data: st.DataObject) -> None:
        tree = self.original.tree
        free = [
            (node, token)
            for node in (Seen(tree).root, *Seen(tree).nodes.values())
            for token in range(VOCAB)
            if token not in node.children
        ]
        count = data.draw(st.integers(0, min(4, self.original.free_nodes, len(free))))
        chosen = data.draw(st.permutations(free))[:count] if count else []
        drops = [data.draw(st.floats(0, 3, width=32)) for _ in chosen]
        new = [NewNode(node.id, token, -drop) for (node, token), drop in zip(chosen, drops, strict=True)]
        self.grows.append(grow_nodes(self.original, new))

    def rescore(self, data: st.DataObject) -> None:
        slots = sorted(data.draw(st.sets(st.integers(1, max(1, len(self.original.tree))), max_size=6)))
        slots = np.array([slot for slot in slots if slot <= len(self.original.tree)], dtype=np.int64)
        self.grows.append(self.original.rescore(slots, np.array([-data.draw(st.floats(0, 3)) for _ in slots])))

    def merge(self) -> None:
        """Two grows of the same root travel as one."""
        if len(self.grows) > 1 and self.grows[-1].commits == self.grows[-2].commits:
            last, before = self.grows.pop(), self.grows.pop()
            self.grows.append(Grow.merge([before, last]))

    def step(self, data: st.DataObject) -> None:
        draft = self.mirror.take(
            data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))
        )
        for _ in range(data.draw(st.integers(0, 2))):  # grows that arrive during the step
            self.deliver_grow()
        picks = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(draft.ids), max_size=len(draft.ids)))
        path = draft.accept(picks)
        commit, _ = self.mirror.commit(draft, path, picks[path[-1]])
        assert list(commit.tokens) == [*(draft.tokens[i] for i in path[1:]), picks[path[-1]]]
        self.committed += commit.tokens
        self.commits.append(commit)

    def deliver_grow(self) -> None:
        if self.grows:
            self.mirror.grow(self.grows.popleft())

    def deliver_commit(self) -> None:
        if self.commits:
            commit = self.commits.popleft()
            before = list(self.seen_committed)
            self.original.commit(commit)
            self.seen_committed += commit.tokens
            assert self.seen_committed[: len(before)] == before

    def drain(self) -> None:
        while self.grows or self.commits:
            self.deliver_grow()
            self.deliver_commit()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_after_the_drain_mirror_equals_original(data: st.DataObject) -> None:
    wire = Wire()
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(
            st.sampled_from(["grow", "grow", "rescore", "merge", "step", "deliver_grow", "deliver_commit"])
        ):
            case "grow":
                wire.grow(data)
            case "rescore":
                wire.rescore(data)
            case "merge":
                wire.merge()
            case "step":
                wire.step(data)
            case "deliver_grow":
                wire.deliver_grow()
            case _:
                wire.deliver_commit()
        assert len(wire.mirror.tree) <= MAX_NODES
        assert len(wire.original.tree) <= MAX_NODES
    wire.drain()
    assert Seen(wire.mirror.tree).snapshot() == Seen(wire.original.tree).snapshot()
    ours, theirs = wire.mirror.tree, wire.original.tree
    assert (ours.scores - ours.root_score).tolist() == (theirs.scores - theirs.root_score).tolist(), "to the last bit"
    assert wire.seen_committed == wire.committed
    assert Seen(wire.mirror.tree).root.position == 3 + len(wire.committed) - 1
    assert Seen(wire.original.tree).root.position == Seen(wire.mirror.tree).root.position


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_best_n_are_always_a_tree_with_the_root(data: st.DataObject) -> None:
    wire = Wire()
    for _ in range(data.draw(st.integers(1, 8))):
        wire.grow(data)
    count, topk, depth = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5))
    nodes = best(wire.original.tree, count, topk, depth)
    assert nodes[0] == Seen(wire.original.tree).root
    assert len({n.id for n in nodes}) == len(nodes) <= count
    for i, node in enumerate(nodes[1:], start=1):
        assert node.parent in nodes[:i]
        assert node.position - nodes[0].position <= depth
        assert sum(other.parent == node.parent for other in nodes) <= topk
    # Nothing better was left out: taken greedily, with no limit on topk, these are the best of all.
    free = best(wire.original.tree, count, VOCAB, 99)
    worst = min((n.score for n in free[1:]), default=float("inf"))
    left = [n for n in Seen(wire.original.tree).nodes.values() if n not in free]
    assert all(n.score <= worst for n in left) or len(free) < count

"""What a tree leaves behind when it is rerooted: nothing that only the garbage collector could free."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.tree import TokenTree
from tests.support.trees import Node, Seen


@pytest.fixture(autouse=True)
def nothing_collected_unasked() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> list[object]:
    """Trees and nodes made since the collector ran: looked for by type, since other threads leave garbage of their own."""
    return [found for found in gc.get_objects(generation=0) if type(found) in (Node, TokenTree)]


def grown(parents: list[int]) -> TokenTree:
    """Node i hangs below node parents[i - 1] modulo i, and has token 100 + i."""
    tree = TokenTree(0, 7)
    for number, parent in enumerate(parents, start=1):
        above = parent % number  # ids are slots: nothing has died
        tree.add(above, number, 100 + number, -1.0)
    return tree


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_dead_nodes_are_free_at_once(parents: list[int], deepest: int, bonus: int) -> None:
    tree = grown(parents)
    accepted = Seen(tree).nodes.get(deepest, Seen(tree).root)
    path = accepted.path()
    heir = accepted.children.get(100 + bonus)
    below = set() if heir is None else {node.id for node in heir.descendants()}
    hit = tree.reroot(tree.slot(accepted.id), 100 + bonus) is not None

    assert hit == (heir is not None) and Seen(tree).nodes.keys() == below
    assert Seen(tree).root.position == 8 + len(path) and Seen(tree).root.parent is None
    assert all(node.path()[-1] is node for node in Seen(tree).nodes.values())
    assert accepted in alive()
    del accepted, path, heir
    assert alive() == [tree]
    del tree
    assert alive() == []


SCORES = st.sampled_from([0.0, -0.5, -1.0, -1.5])


@given(st.lists(st.tuples(st.integers(0, 30), SCORES), max_size=40), *3 * [st.integers(1, 9)])
def test_the_best_are_taken_one_at_a_time_whatever_the_order_in_which_they_came(
    grown: list[tuple[int, float]], count: int, topk: int, depth: int
) -> None:
    tree = TokenTree(0, 7)
    for number, (parent, loss) in enumerate(grown, start=1):
        above = parent % number
        tree.add(above, number, 100 + number, loss)

    def rank(node: Node) -> tuple[float, int]:
        return -node.score, node.id

    wanted = [Seen(tree).root]
    while len(wanted) < count:
        open_ = [
            child
            for node in wanted
            if node.position < 7 + depth
            for child in sorted(node.children.values(), key=rank)[:topk]
            if child not in wanted
        ]
        if not open_:
            break
        wanted.append(min(open_, key=rank))
    assert tree.best(count, topk, depth) == [node.id for node in wanted]


@given(
    st.lists(st.integers(0, 30), max_size=20),
    st.lists(st.tuples(st.integers(-1, 20), st.integers(95, 125)), max_size=20),
)
def test_children_are_found_by_parent_and_token(parents: list[int], asked: list[tuple[int, int]]) -> None:
    tree = grown(parents)
    pairs = [(parent if parent <= len(tree) else -1, token) for parent, token in asked]
    found = tree.children(np.array([parent for parent, _ in pairs], int), np.array([token for _, token in pairs], int))
    expected = [None if parent < 0 else tree.child(parent, token) for parent, token in pairs]
    assert found.tolist() == [-1 if slot is None else slot for slot in expected]

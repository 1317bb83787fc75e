"""Trees in arrays are what trees of objects were: the same nodes, the same order, the same refusals, whatever happens to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.errors import IllegalEvent
from specsplit.speculation import Grow, Mirror, mirror
from specsplit.tree import TokenTree, columns, token_tree
from tests.speculation import reference
from tests.support.trees import Seen

VOCAB = 4
MAX_NODES = 40
LOSSES = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
"""Few, so that survivals are often equal."""
WISHES = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(0, 6))


@pytest.fixture(params=[(1, 0), (4, 10), (10**6, 10**6)], ids=["at once", "long ones at once", "in order"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From how many nodes on a grow is applied at once, and up to how many in a tree are looked at one by one."""
    long, few = request.param
    monkeypatch.setattr(mirror, "BULK_FROM", long)
    monkeypatch.setattr(token_tree, "_FEW", few)
    monkeypatch.setattr(columns, "_MOVED_AT_ONCE", few)


class Pair:
    """A mirror in arrays and one of objects, told the same."""

    def __init__(self) -> None:
        self.arrays = Mirror(1, 0, 3, MAX_NODES, VOCAB)
        self.objects = reference.Mirror(1, 0, 3, MAX_NODES, VOCAB)
        self.last_id = 0

    @property
    def known(self) -> list[int]:
        """Ids that a grow may name: 0, live ones, some that are committed or gone, some that never were."""
        return [0, *self.objects.tree.nodes, *range(max(1, self.last_id - 6), self.last_id + 1)]

    def grow(self, data: st.DataObject) -> None:
        ids, parents, tokens, edges = list[int](), list[int](), list[int](), list[float]()
        for _ in range(data.draw(st.integers(0, 8))):
            ids.append(
                self.last_id + data.draw(st.sampled_from([1, 1, 1, 2, 0])) if data.draw(RARELY) else self.last_id + 1
            )
            parents.append(data.draw(st.sampled_from([*self.known, *ids[:-1]])))
            tokens.append(
                data.draw(st.integers(-1, VOCAB)) if data.draw(RARELY) else data.draw(st.integers(0, VOCAB - 1))
            )
            edges.append(data.draw(ODD_EDGES) if data.draw(RARELY) else -data.draw(LOSSES))
            self.last_id = max(self.last_id, ids[-1])
        rescored = sorted(data.draw(st.sets(st.sampled_from([*self.known[1:], *ids] or [1]), max_size=4)))
        if rescored and data.draw(RARELY):
            rescored.append(data.draw(st.sampled_from([rescored[0], self.last_id + 1, 0, 2**63])))
        new_edges = [data.draw(ODD_EDGES) if data.draw(RARELY) else -data.draw(LOSSES) for _ in rescored]
        commits = data.draw(st.integers(self.objects.acknowledged, self.objects.commits))
        columns = tuple(ids), tuple(parents), tuple(tokens), tuple(edges)
        self._both(Grow(commits, *columns, data.draw(st.booleans()), tuple(rescored), tuple(new_edges)))

    def _both(self, grow: Grow) -> None:
        results: list[int | str] = []
        for side in (self.arrays, self.objects):
            try:
                results.append(side.grow(grow))
            except IllegalEvent as error:
                results.append(str(error))
        assert results[0] == results[1]

    def step(self, data: st.DataObject) -> None:
        wish = data.draw(WISHES)
        draft, other = self.arrays.take(*wish), self.objects.take(*wish)
        assert draft == other
        if data.draw(st.booleans()):
            self.grow(data)
        picks = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(draft.ids), max_size=len(draft.ids)))
        path = draft.accept(picks)
        deepest = self.objects.tree.nodes.get(draft.ids[path[-1]], self.objects.tree.root)
        assert self.arrays.has_nodes_below(draft, path) == bool(deepest.children)
        bonus = picks[path[-1]]
        assert self.arrays.commit(draft, path, bonus) == self.objects.commit(other, path, bonus)

    def check(self) -> None:
        arrays, objects = self.arrays.tree, self.objects.tree
        assert Seen(arrays).snapshot() == objects.snapshot()
        assert len(self.arrays) == len(arrays) == len(objects)
        assert Seen(arrays).root.position == objects.root.position
        below = [(n.id, n.position, list(n.children)) for n in Seen(arrays).root.descendants()]
        assert below == [(n.id, n.position, [c.token for c in n.ranked]) for n in objects.root.descendants()]


ODD_EDGES = st.sampled_from([5e-4, 1.0, -1024.5, float("nan"), float("-inf")])
RARELY = st.integers(0, 24).map(lambda number: number == 0)


@pytest.mark.usefixtures("at_once")
def test_a_mirror_in_arrays_does_what_one_of_objects_did() -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        pair = Pair()
        for _ in range(data.draw(st.integers(1, 14))):
            (pair.grow if data.draw(st.booleans()) else pair.step)(data)
            pair.check()

    law()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_best_of_many_are_those_that_the_frontier_gives_one_at_a_time(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    parents = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    losses = data.draw(st.lists(LOSSES, min_size=count, max_size=count))
    arrays, objects = TokenTree(0, 7), reference.TokenTree(0, 7)
    for number, (parent, loss) in enumerate(zip(parents, losses, strict=True), start=1):
        above = objects.nodes.get(parent % number, objects.root)
        objects.add(above, number, 100 + number, -loss)
        arrays.add(parent % number, number, 100 + number, -loss)
    for wish in data.draw(st.lists(WISHES, min_size=1, max_size=6)):
        assert arrays.best(*wish) == [node.id for node in objects.best(*wish)]


def test_a_column_that_was_attached_moves_with_the_nodes_and_is_blank_for_new_ones() -> None:
    tree = TokenTree(0, 0)
    column = tree.attach("int64", -1)
    for number in range(1, 200):
        tree.add(max(0, number - 3), number, number, -1.0)
    assert (column.data == -1).all()
    column.data[: len(tree) + 1] = tree.ids
    moved = tree.reroot(0, 2)
    assert moved is not None and moved[2] == 0 and moved[1] == -1
    assert column.data[: len(tree) + 1].tolist() == tree.ids.tolist() == [2, *range(5, 200, 3)]
    assert (column.data[len(tree) + 1 :] == -1).all()
    tree.reroot(0, 2)
    assert (column.data == -1).all(), "a miss leaves nothing"


@pytest.mark.parametrize("bonus", [2, 0])
def test_a_column_that_remembers_tells_what_nodes_had_before_a_reroot_the_dead_included(bonus: int) -> None:
    tree = TokenTree(0, 0)
    column = tree.attach("int64", -1, remembers=True)
    for number in range(1, 200):
        tree.add(max(0, number - 3), number, number, -1.0)
    column.data[: len(tree) + 1] = tree.ids
    tree.reroot(0, bonus)
    assert column.before.tolist() == list(range(200))


def test_a_long_session_holds_no_more_than_its_live_nodes_need() -> None:
    mirror = Mirror(1, 0, 0, max_nodes=64, vocab_size=100)
    last = 0
    for step in range(2000):
        root = mirror.tree.root_id
        ids = tuple(range(last + 1, last + 31))
        mirror.grow(Grow(step, ids, (root,) * 30, tuple(range(30)), (0.0,) * 30))
        last += 30
        mirror.grow(Grow(step, (last + 1,), (ids[7],), (50,), (-0.01,)))
        last += 1
        draft = mirror.take(40, 40, 2)
        mirror.commit(draft, [0], 7 if step % 50 else 99)
    assert len(mirror) <= 64
    assert sum(array.nbytes for array in (mirror.tree.ids.base, mirror.tree.scores.base) if array is not None) < 10_000


def test_a_chain_longer_than_a_tree_has_places_for_is_hung_at_once() -> None:
    tree, count = TokenTree(7, 0), 1_000
    numbers = np.arange(1, count + 1)
    assert tree.extend(numbers, numbers - 1, numbers, np.full(count, -0.5))
    assert int(tree.positions[count]) == count
    assert tree.scores[count] == -0.5 * count


def test_ids_beyond_63_bits_are_refused() -> None:
    mirror = Mirror(1, 0, 0, max_nodes=64, vocab_size=100)
    with pytest.raises(IllegalEvent, match="ids: 9223372036854775808 is above 9223372036854775807"):
        mirror.grow(Grow(0, (2**63,), (0,), (1,), (-1.0,)))


@pytest.mark.parametrize("count", [2, 64], ids=["in order", "at once"])
@pytest.mark.parametrize("column", ["ids", "parents", "tokens"])
@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_beyond_63_bits_anywhere_is_refused_and_changes_nothing(count: int, column: str, number: int) -> None:
    mirror = Mirror(1, 0, 0, max_nodes=128, vocab_size=100)
    sound = Grow(0, tuple(range(1, count + 1)), (0,) * count, tuple(range(count)), (-1.0,) * count)
    hostile = list(getattr(sound, column))
    hostile[count // 2] = number
    with pytest.raises(IllegalEvent):
        mirror.grow(replace(sound, **{column: tuple(hostile)}))


@pytest.mark.parametrize("count", [63, 64, 100, 1000])
def test_a_chain_that_comes_in_one_grow_may_be_longer_than_the_columns_are(count: int) -> None:
    mirror = Mirror(1, 0, 0, max_nodes=2000, vocab_size=8)
    ids = range(1, count + 1)
    assert mirror.grow(Grow(0, ids, [node_id - 1 for node_id in ids], [1] * count, [-0.125] * count)) == count
    assert [mirror.tree.token_of(slot) for slot in mirror.tree.path(count)] == [1] * count

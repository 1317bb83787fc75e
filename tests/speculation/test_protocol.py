"""The worked example, and every rule that a peer can break."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specsplit.errors import IllegalEvent
from specsplit.speculation import TRANSITIONS, Commit, Event, Grow, Mirror, Original, Side, State
from specsplit.tree import Ints
from tests.support.trees import NewNode, Seen, grow_nodes

THE, CAT, SAT, IS, ON, IN, A, MAT, RUG = range(9)
EXAMPLE = [  # (parent, token, edge), ids 1..7; likely in the order 1 > 3 > 2 > 5 > 4 > 6 > 7
    (0, SAT, -0.1),
    (0, IS, -0.3),
    (1, ON, -0.1),
    (1, IN, -0.4),
    (3, THE, -0.2),
    (2, A, -0.3),
    (5, MAT, -0.3),
]


def example() -> tuple[Original, Mirror]:
    """Both sides of the worked example, in step with each other."""
    original = Original(1, CAT, root_position=1, max_nodes=16)
    mirror = Mirror(1, CAT, root_position=1, max_nodes=16, vocab_size=9)
    mirror.grow(grow_nodes(original, [NewNode(*node) for node in EXAMPLE[:2]]))
    mirror.grow(grow_nodes(original, [NewNode(*node) for node in EXAMPLE[2:4]]))
    mirror.grow(grow_nodes(original, [NewNode(*node) for node in EXAMPLE[4:6]]))
    mirror.grow(grow_nodes(original, [NewNode(*node) for node in EXAMPLE[6:]]))
    return original, mirror


def test_the_worked_example_steps_over_cat_1_3_2_5() -> None:
    _, mirror = example()
    draft = mirror.take(num_draft_tokens=5, topk=4, num_steps=5)
    assert draft.ids == [0, 1, 3, 2, 5]
    assert draft.tokens == [CAT, SAT, ON, IS, THE]
    assert draft.parents == [-1, 0, 1, 0, 2]
    assert draft.positions == [1, 2, 3, 2, 4]


def test_the_worked_example_hits_with_mat() -> None:
    original, mirror = example()
    draft = mirror.take(5, 4, 5)
    picks = {CAT: SAT, SAT: ON, ON: THE, THE: MAT, IS: A}
    path = draft.accept([picks[token] for token in draft.tokens])
    assert [draft.ids[i] for i in path] == [0, 1, 3, 5]
    commit, hit = mirror.commit(draft, path, MAT)
    assert hit and commit == Commit(1, 5, (SAT, ON, THE, MAT))
    reroot = original.commit(commit)
    assert reroot.hit and reroot.root == 7 and reroot.path == (1, 3, 5)
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot() == (7, MAT, {})


@pytest.mark.parametrize(
    ("without_pick", "accepted"),
    [(MAT, [0, 1, 3, 5]), (THE, [0, 1, 3]), (ON, [0, 1]), (SAT, [0]), (CAT, [0]), (IS, [0, 1, 3, 5])],
)
def test_a_node_behind_which_there_is_no_pick_is_the_bonus(without_pick: int, accepted: list[int]) -> None:
    original, mirror = example()
    draft = mirror.take(5, 4, 5)
    follows = {CAT: SAT, SAT: ON, ON: THE, THE: MAT, IS: A}
    picks = [None if token == without_pick else follows[token] for token in draft.tokens]
    path = draft.accept(picks)
    assert [draft.ids[i] for i in path] == accepted
    bonus = picks[path[-1]]
    assert (bonus is None) == (without_pick == CAT), "a root without a pick is the end"
    if bonus is not None:
        commit, hit = mirror.commit(draft, path, bonus)
        assert hit
        original.commit(commit)
        assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot()


def test_the_worked_example_misses_with_rug() -> None:
    original, mirror = example()
    draft = mirror.take(5, 4, 5)
    commit, hit = mirror.commit(draft, [0, 1, 2, 4], RUG)
    assert not hit and not original.commit(commit).hit
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot() == (0, RUG, {})


def test_a_grow_under_a_rejected_branch_is_dropped() -> None:
    original, mirror = example()
    late = grow_nodes(original, [NewNode(4, MAT, -0.4)])
    draft = mirror.take(5, 4, 5)
    mirror.commit(draft, [0, 1, 2, 4], MAT)
    before = Seen(mirror.tree).snapshot()
    assert mirror.grow(late) == 0
    assert Seen(mirror.tree).snapshot() == before


def test_a_late_grow_that_names_the_bonus_gives_the_root_its_id() -> None:
    original, mirror = example()
    late = grow_nodes(original, [NewNode(7, RUG, -0.1)])
    later = grow_nodes(original, [NewNode(8, CAT, -0.25)])
    draft = mirror.take(16, 4, 9)
    path = draft.accept([{CAT: SAT, SAT: ON, ON: THE, THE: MAT, MAT: RUG}.get(t, A) for t in draft.tokens])
    commit, hit = mirror.commit(draft, path, RUG)
    assert not hit, "the verifier cannot know node 8 yet"
    assert original.commit(commit).hit
    mirror.grow(late)
    mirror.grow(later)
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot() == (8, RUG, {9: (8, CAT, -0.25)})


def test_commits_out_of_order_or_off_the_path_are_refused() -> None:
    original, _ = example()
    with pytest.raises(IllegalEvent, match="its number is 2, expected 1"):
        original.commit(Commit(2, 0, (SAT,)))
    with pytest.raises(IllegalEvent, match="deepest node 99 is not live"):
        original.commit(Commit(1, 99, (SAT,)))
    with pytest.raises(IllegalEvent, match="are not the path"):
        original.commit(Commit(1, 3, (SAT, IN, MAT)))
    assert original.commits == 0


@pytest.mark.parametrize(
    ("grow", "complaint"),
    [
        (Grow(0, (7,), (0,), (A,), (-1.0,)), "ids: 7 is not above 7"),
        (Grow(0, (8,), (8,), (A,), (-1.0,)), "parents: 8 is not 0 or an id below 8"),
        (Grow(0, (8,), (0,), (9,), (-1.0,)), "token_ids: 9 is outside the vocabulary of 9"),
        (Grow(0, (8,), (0,), (SAT,), (-1.0,)), "node 0 already has a child with token"),
        (Grow(0, (8,), (1,), (A,), (0.1,)), r"edges: 0.1 is not in -1024\.\.0"),
        (Grow(0, (8,), (1,), (A,), (float("nan"),)), "edges: nan"),
        (Grow(0, (8,), (1,), (A,), (float("-inf"),)), "edges: -inf"),
        (Grow(0, rescored=(3,), new_edges=(float("nan"),)), "new_edges: nan"),
        (Grow(0, rescored=(8,), new_edges=(-1.0,)), "rescored_ids: do not ascend from 1 to at most 7, the last grown"),
        (Grow(0, rescored=(0,), new_edges=(-1.0,)), "rescored_ids"),
        (Grow(0, rescored=(3, 3), new_edges=(-1.0, -2.0)), "rescored_ids"),
        (Grow(1, (8,), (0,), (A,), (-1.0,)), "commits: is 1, expected 0..0"),
    ],
)
def test_a_grow_that_breaks_the_rules_is_refused_with_its_field(grow: Grow, complaint: str) -> None:
    _, mirror = example()
    with pytest.raises(IllegalEvent, match=complaint):
        mirror.grow(grow)


def test_neither_side_holds_more_than_the_cap() -> None:
    original = Original(1, CAT, 0, max_nodes=2)
    grow = grow_nodes(original, [NewNode(0, SAT, -1.0), NewNode(0, IS, -1.0)])
    assert original.state is State.FULL and original.free_nodes == 0
    with pytest.raises(IllegalEvent, match="in state full"):
        grow_nodes(original, [NewNode(0, A, -1.0)])
    mirror = Mirror(1, CAT, 0, max_nodes=1, vocab_size=9)
    with pytest.raises(IllegalEvent, match="more than 1 live nodes"):
        mirror.grow(grow)


def test_the_drafter_cannot_grow_the_same_node_twice() -> None:
    original, _ = example()
    with pytest.raises(IllegalEvent, match="already has a child"):
        grow_nodes(original, [NewNode(1, ON, -0.9)])
    with pytest.raises(IllegalEvent, match="twice under one parent"):
        grow_nodes(original, [NewNode(7, A, -0.9), NewNode(7, A, -0.9)])


def test_what_was_in_flight_when_a_side_closed_is_let_pass() -> None:
    original, mirror = example()
    late = grow_nodes(original, [NewNode(7, RUG, -0.1)])
    draft = mirror.take(5, 4, 5)
    commit, _ = mirror.commit(draft, [0], SAT)
    original.close()
    mirror.close()
    assert mirror.grow(late) == 0
    assert original.commit(commit).path == ()


def test_every_event_off_the_table_is_an_illegal_event() -> None:
    legal = {(side, state, event) for side, state, event in TRANSITIONS}
    mirror = Mirror(1, CAT, 0, 4, 9)
    mirror.take(1, 1, 0)
    with pytest.raises(IllegalEvent, match="session 1: take in state stepping"):
        mirror.take(1, 1, 0)
    reachable = {(side, state) for side, state, _ in legal} | {(side, s) for (side, _, _), s in TRANSITIONS.items()}
    for (side, state), event in itertools.product(reachable, Event):
        if (side, state, event) in TRANSITIONS:
            assert (side, TRANSITIONS[side, state, event]) in reachable
    assert (Side.MIRROR, State.READY, Event.COMMIT) not in TRANSITIONS


def test_a_drafter_that_rested_for_want_of_something_is_stirred_when_it_is_sent_it() -> None:
    original, mirror = example()
    mirror.grow(grow_nodes(original, [], resting=True))
    assert mirror.resting and mirror.caught_up
    mirror.mark_busy()
    assert not mirror.resting and not mirror.caught_up, "its answer is still to come"
    mirror.grow(grow_nodes(original, [NewNode(7, RUG, -0.1)]))
    assert mirror.caught_up and not mirror.resting
    mirror.mark_busy()
    assert mirror.caught_up, "it did not rest"


def slots_of(original: Original, *ids: int) -> Ints:
    return np.array([original.tree.slot(node_id) for node_id in ids])


def test_the_worked_example_is_drawn_anew_below_sat() -> None:
    original, mirror = example()
    assert mirror.preview(5, 4, 5).ids == [0, 1, 3, 2, 5]
    grow = original.rescore(slots_of(original, 3, 4), np.array([-0.9, -0.05]))
    assert (grow.rescored, grow.ids) == ([3, 4], ())
    mirror.grow(grow)
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot()
    draft = mirror.take(num_draft_tokens=5, topk=4, num_steps=5)
    assert draft.ids == [0, 1, 4, 2, 6], "what hangs below `on` has fallen with it"
    assert np.allclose(draft.log_survivals, [0, -0.1, -0.15, -0.3, -0.6], atol=1e-5)


def test_another_edge_for_a_node_that_is_gone_or_committed_is_let_pass() -> None:
    original, mirror = example()
    late = original.rescore(slots_of(original, 1, 4, 7), np.array([-0.9, -0.9, -0.9]))
    commit, hit = mirror.commit(mirror.take(5, 4, 5), [0, 1, 2, 4], MAT)
    assert hit
    mirror.grow(late)
    original.commit(commit)
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot() == (7, MAT, {})
    mirror.grow(grow_nodes(original, [NewNode(7, RUG, -0.25)]))
    assert mirror.take(5, 4, 5).log_survivals == [0.0, -0.25], "counted from the root, whatever was said of it"


def test_a_full_original_still_gives_other_edges_and_none_to_its_root() -> None:
    original = Original(1, CAT, 0, max_nodes=1)
    grow_nodes(original, [NewNode(0, SAT, -1.0)])
    assert original.state is State.FULL
    assert original.rescore(slots_of(original, 1), np.array([-2.0])).new_edges == [-2.0]
    for wrong in (([0], [-1.0]), ([1], [0.5]), ([1], [float("nan")])):
        with pytest.raises(IllegalEvent, match="an edge is not at most 0, or is the root's"):
            original.rescore(np.array(wrong[0]), np.array(wrong[1]))


def test_grows_merge_to_what_they_do_one_after_the_other() -> None:
    original, mirror = example()
    one = [
        original.rescore(slots_of(original, 3, 4), np.array([-0.9, -0.05])),
        grow_nodes(original, [NewNode(7, RUG, -0.1)]),
        original.rescore(slots_of(original, 1, 3, 8), np.array([-0.5, -0.25, -0.75])),
    ]
    merged = Grow.merge(one)
    assert (merged.rescored, merged.ids) == ((1, 3, 4, 8), (8,))
    mirror.grow(merged)
    assert Seen(mirror.tree).snapshot() == Seen(original.tree).snapshot()

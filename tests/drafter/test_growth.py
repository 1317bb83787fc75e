from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsplit.speculation import Commit, Grow, Mirror, Original
from specsplit.tree import ROOT
from specsplit.values import Plan
from specsplit_drafter.drafts.calibration import DistanceCalibration
from specsplit_drafter.drafts.proposer import UNBOUNDED, Children
from specsplit_drafter.growth.cost import LinearCost
from specsplit_drafter.growth.cost_benefit import CostBenefit
from specsplit_drafter.growth.growth import Growth, choose
from tests.drafter.toys import children, children_of, price_s
from tests.support.ticking import TickingClock
from tests.support.trees import NewNode, Node, Seen, grow_nodes

VOCAB = 6
CLOCK = TickingClock()
HALVES = {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.0625}
"""Every node's children, as likely as this."""


def growth_of(
    plan: Plan | None = None,
    *,
    max_nodes: int = 64,
    survival: float = 0.002,
    max_context: int = 1000,
    max_depth: int = UNBOUNDED,
    redraws: bool = False,
    shares_root: bool = False,
    calibration: DistanceCalibration | None = None,
    cost_benefit: CostBenefit | None = None,
    held: bool = False,
) -> Growth:
    return Growth(
        Original(1, 0, 3, max_nodes),
        plan or Plan(),
        64,
        cost_benefit or CostBenefit(price_s(survival)),
        calibration or DistanceCalibration(),
        max_context,
        max_depth=max_depth,
        redraws=redraws,
        shares_root=shares_root,
        held=held,
    )


def flush(growth: Growth) -> list[Grow]:
    """What the verifier is told, if it was last told anything long ago."""
    return growth.flush(CLOCK.now())


def expand(growths: Sequence[Growth], found: Children, width: int = 64, free_kv_slots: int = 1 << 30) -> list[Node]:
    """One expansion in which every node gets the same children."""
    chosen = choose(growths, width, free_kv_slots)
    for growth, slots in chosen:
        rows = np.zeros(len(slots), dtype=np.int64)
        growth.add_children(Children(found.tokens[rows], found.log_probabilities[rows]))
    return [Seen(growth.original.tree).look(slot, None) for growth, slots in chosen for slot in slots.tolist()]


def grow_out(growth: Growth, found: Children, width: int = 64) -> int:
    """Expand until it rests; how many expansions it took."""
    rounds = 0
    while expand([growth], found, width):
        rounds += 1
    return rounds


def depth(node: Node, growth: Growth) -> int:
    return node.position - Seen(growth.original.tree).root.position


def test_the_root_is_expanded_first_and_its_children_pushed_at_once() -> None:
    growth = growth_of()
    assert expand([growth], children(HALVES)) == [Seen(growth.original.tree).root]
    (grow,) = flush(growth)
    assert list(grow.ids) == [1, 2, 3, 4]
    assert list(grow.parents) == [0, 0, 0, 0]
    assert list(grow.tokens) == [0, 1, 2, 3]
    assert np.allclose(np.exp(grow.edges), [0.5, 0.25, 0.125, 0.0625], rtol=1e-5)
    assert not grow.resting


def test_the_likeliest_nodes_of_all_sessions_share_one_expansion() -> None:
    sure, unsure = growth_of(), growth_of()
    for growth, found in ((sure, children({0: 0.9, 1: 0.05})), (unsure, children({0: 0.4, 1: 0.3}))):
        choose([growth], 1, 9)
        growth.add_children(found)
    survivals = [round(math.exp(node.score), 3) for node in expand([sure, unsure], children(HALVES), width=2)]
    assert survivals == [0.9, 0.4]


def test_it_goes_broad_before_deep_while_that_is_likelier() -> None:
    growth = growth_of()
    expand([growth], children(HALVES))
    assert [depth(n, growth) for n in expand([growth], children(HALVES))] == [1, 1, 1, 1]
    scores = [node.score for node in expand([growth], children(HALVES))]
    assert scores == sorted(scores, reverse=True)


def test_candidates_below_the_threshold_are_kept_and_pushed_when_a_commit_raises_them() -> None:
    growth = growth_of(survival=0.2)
    grow_out(growth, children(HALVES))
    pushed = {(n.parent.id if n.parent else 0, n.token) for n in Seen(growth.original.tree).nodes.values()}
    assert pushed == {(0, 0), (0, 1), (1, 0)}  # 1/2, 1/4, 1/4
    flush(growth)
    growth.commit(Commit(1, 0, (0,)))  # a hit: node 1 is the root, its children at 1/2, 1/4, 1/8, 1/16
    live = {n.token for n in Seen(growth.original.tree).root.children.values()}
    assert live == {0, 1}
    assert Seen(growth.original.tree).nodes[3].children.keys() == {0}  # half of a half of the new root
    (grow,) = flush(growth)
    assert (list(grow.parents), list(grow.tokens), grow.commits) == ([0, 3], [1, 0], 1)


def test_a_miss_forgets_everything_and_begins_with_the_root_alone() -> None:
    growth = growth_of()
    grow_out(growth, children(HALVES))
    flush(growth)
    growth.commit(Commit(1, 0, (5,)))
    assert not Seen(growth.original.tree).nodes
    assert [node.token for node in expand([growth], children(HALVES))] == [5]


@pytest.mark.parametrize(
    ("growing", "deepest", "after"),
    [
        pytest.param(partial(growth_of, Plan(num_steps=2), max_nodes=500), 5, 5, id="two steps and the bonus between them"),
        pytest.param(partial(growth_of, Plan(num_steps=5), max_depth=2, redraws=True), 2, 2, id="as deep as the proposer goes"),
        pytest.param(partial(growth_of, max_context=6), 2, 1, id="up to the end of the context, with the root at 3"),
    ],
)  # fmt: skip
def test_nothing_is_grown_deeper_than_plan_proposer_and_context_allow(
    growing: Callable[[], Growth], deepest: int, after: int
) -> None:
    growth = growing()
    for number, wanted in enumerate((deepest, after), start=1):
        grow_out(growth, children({0: 0.99}))
        assert max(depth(node, growth) for node in Seen(growth.original.tree).nodes.values()) == wanted
        growth.commit(Commit(number, 0, (0,)))


def test_resting_is_told_once_and_again_after_every_commit() -> None:
    growth = growth_of(survival=0.4)
    expand([growth], children(HALVES))
    assert [grow.resting for grow in flush(growth)] == [False]
    expand([growth], children({0: 0.1}))
    assert flush(growth) == [Grow(0, resting=True)]
    assert flush(growth) == []
    growth.commit(Commit(1, 0, (0,)))
    assert flush(growth) == [Grow(1, resting=True)]


def test_a_plan_that_does_not_speculate_rests_at_once() -> None:
    growth = growth_of(Plan(num_steps=0))
    assert not expand([growth], children(HALVES))
    assert flush(growth) == [Grow(0, resting=True)]


def test_without_draft_ahead_the_whole_tree_goes_in_one_message_after_each_commit() -> None:
    growth = growth_of(Plan(num_steps=3, draft_ahead=False), max_nodes=500)
    for number in range(1, 4):
        told: list[Grow] = []
        rounds = 0
        while expand([growth], children(HALVES)):
            rounds += 1
            told += flush(growth)
        assert rounds == 3 if number == 1 else 1 <= rounds <= 3  # what a hit left needs fewer
        assert [grow.resting for grow in told] == [True]
        assert max(depth(node, growth) for node in Seen(growth.original.tree).nodes.values()) <= 3
        growth.commit(Commit(number, 0, (0,)))


FORCED = children({5: 1.0})


@pytest.mark.parametrize(
    ("held", "forced", "num_draft_tokens", "rounds"),
    [
        (True, 0, 16, 3),
        (True, 2, 16, 5),  # two that are forced, and three that are guessed
        (True, 2, 5, 4),  # a step has room for four nodes
        (True, 7, 5, 4),  # all of them forced
        (True, 2, 3, 3),  # as many as the plan asks for, at least
        (False, 2, 16, 3),  # sure, and not forced
    ],
)
def test_without_draft_ahead_levels_that_a_constraint_forces_are_drawn_beside_those_of_the_plan(
    held: bool, forced: int, num_draft_tokens: int, rounds: int
) -> None:
    growth = growth_of(Plan(num_steps=3, num_draft_tokens=num_draft_tokens, draft_ahead=False), held=held)
    found = 0
    while expand([growth], FORCED if found < forced else children(HALVES)):
        found += 1
    assert found == rounds
    (grow,) = flush(growth)
    assert grow.resting and max(depth(node, growth) for node in Seen(growth.original.tree).nodes.values()) == rounds


def test_after_a_commit_only_what_is_still_forced_is_drawn_beside_the_plan() -> None:
    """Of three forced levels one is committed: the other two and three that are guessed are there. Then the last two are, and a guess."""
    growth = growth_of(Plan(num_steps=3, draft_ahead=False), max_nodes=500, held=True)
    for found in (FORCED, FORCED, FORCED, *[children(HALVES)] * 3):
        assert expand([growth], found)
    growth.commit(Commit(1, 0, (5,)))
    assert not expand([growth], children(HALVES))
    growth.commit(Commit(2, 3, (5, 5, 0)))
    assert 1 <= grow_out(growth, children(HALVES)) <= 3
    assert max(depth(node, growth) for node in Seen(growth.original.tree).nodes.values()) == 3


def test_without_draft_ahead_a_commit_that_comes_early_is_told_what_was_grown_before_it() -> None:
    growth = growth_of(Plan(num_steps=3, draft_ahead=False))
    mirror = Mirror(1, 0, 3, 64, VOCAB)
    expand([growth], children(HALVES))
    assert flush(growth) == []
    commit, hit = mirror.commit(mirror.take(8, 4, 3), [0], 0)
    assert not hit
    growth.commit(commit)
    grow_out(growth, children(HALVES))
    for grow in flush(growth):
        mirror.grow(grow)
    assert Seen(mirror.tree).snapshot() == Seen(growth.original.tree).snapshot()


def test_a_session_without_room_in_the_proposer_rests_until_its_next_commit() -> None:
    growth = growth_of()
    expand([growth], children(HALVES), free_kv_slots=0)  # the root needs none
    flush(growth)
    assert not expand([growth], children(HALVES), free_kv_slots=0)
    assert [grow.resting for grow in flush(growth)] == [True]
    assert not expand([growth], children(HALVES), free_kv_slots=9)
    growth.commit(Commit(1, 0, (0,)))
    assert expand([growth], children(HALVES), free_kv_slots=9)


def test_a_root_whose_context_is_still_being_read_stays_the_head() -> None:
    growth = growth_of()
    ((_, root),) = choose([growth], 8, 0)
    growth.postpone()
    assert not growth.resting
    ((chosen, again),) = choose([growth], 8, 0)
    assert chosen is growth
    assert again.tolist() == root.tolist() == [ROOT]


def test_impossible_candidates_are_left_out() -> None:
    growth = growth_of()
    expand([growth], Children.of([[(4, -0.1), (2, -np.inf), (1, -np.inf)]]))
    assert [node.token for node in Seen(growth.original.tree).nodes.values()] == [4]


def test_after_a_commit_a_tree_is_drawn_anew_level_by_level_and_keeps_its_ids() -> None:
    growth = growth_of(Plan(num_steps=2), redraws=True)
    mirror = Mirror(1, 0, 3, 64, VOCAB)
    grow_out(growth, children(HALVES))
    growth.commit(Commit(1, 0, (0,)))
    mirror.commit(mirror.take(1, 1, 0), [0], 0)
    tree = growth.original.tree
    root, before = Seen(tree).root, Seen(tree).snapshot()[2]
    for grow in flush(growth):
        mirror.grow(grow)
    again = {5: 0.6, 0: 0.3, 4: 0.05}
    assert expand([growth], children(again)) == [root]  # alone, and before all others
    (grow,) = flush(growth)
    assert (list(grow.parents), list(grow.tokens)) == ([0, 0], [5, 4])
    below = sorted(node.id for node in root.children.values())
    assert [Seen(tree).nodes[i].token for i in grow.rescored] == [0, 1, 2, 3]
    kept, *gone = grow.new_edges
    assert grow.edges[0] > kept > grow.edges[1], "as likely as its new expansion says"
    assert gone == [grow.edges[1]] * 3, "what is no candidate any more is not likelier than the last that is"
    assert before.keys() <= Seen(tree).snapshot()[2].keys()
    drawn = {node.id for node in expand([growth], children(again))}
    assert drawn == {*below}, "the next level: what is new beside what is redrawn"
    assert all(
        Seen(tree).nodes[i].children.keys() >= {0, 4, 5} for i in drawn if Seen(tree).nodes[i].score - root.score > -2
    )
    for told in [grow, *flush(growth)]:
        mirror.grow(told)
    assert Seen(mirror.tree).snapshot() == Seen(tree).snapshot()
    grow_out(growth, children(again))
    assert not any(expand([growth], children(again))), "nothing is drawn twice between two commits"


def test_a_drafter_that_had_more_to_draw_goes_on_below_while_it_draws_anew() -> None:
    growth = growth_of(Plan(num_steps=4), max_nodes=500, redraws=True)
    for _ in range(4):
        expand([growth], children(HALVES))
    growth.commit(Commit(1, 0, (0,)))
    assert [depth(node, growth) for node in expand([growth], children(HALVES))] == [0]
    drawn = expand([growth], children(HALVES))
    assert {depth(node, growth) for node in drawn} == {1, 3}, "known ones after their parents, new ones at once"
    assert not {node.id for node in drawn} & {node.id for node in expand([growth], children(HALVES))}


def busy(shares_root: bool) -> Growth:
    """A growth that has been drawn for four levels, and had more to draw when its first level was committed."""
    growth = growth_of(Plan(num_steps=4), max_nodes=500, redraws=True, shares_root=shares_root)
    for _ in range(4):
        expand([growth], children(HALVES))
    growth.commit(Commit(1, 0, (0,)))
    return growth


def test_a_root_may_share_its_expansion_with_new_nodes_that_are_not_its_children() -> None:
    growth = busy(shares_root=True)
    ((_, slots),) = choose([growth], 64, 1 << 30)
    tree = growth.original.tree
    assert slots[0] == ROOT
    assert {int(tree.positions[slot]) - tree.root_position for slot in slots} == {0, 2, 3}
    assert not growth.needs_kv_slot(slots[:1]).any(), "the root takes none"
    growth.add_children(children_of([HALVES] * len(slots)))
    assert {depth(node, growth) for node in expand([growth], children(HALVES))} >= {1, 4}


def test_what_was_to_be_expanded_beside_a_root_that_is_still_read_towards_is_offered_again() -> None:
    growth = busy(shares_root=True)
    offered = growth.offers()
    new = growth.needs_kv_slot(offered)
    assert choose([growth], 64, 1 << 30)
    assert not growth.needs_kv_slot(offered).any(), "they are taken"
    growth.postpone()
    assert growth.offers().tolist() == offered.tolist()
    assert growth.needs_kv_slot(offered).tolist() == new.tolist() == [False] + [True] * (len(offered) - 1)


def test_without_room_in_the_proposer_known_nodes_are_drawn_anew_and_new_ones_wait() -> None:
    growth = growth_of(redraws=True)
    for _ in range(3):
        expand([growth], children(HALVES))
    growth.commit(Commit(1, 0, (0,)))
    below = {node.id for node in Seen(growth.original.tree).root.children.values()}
    drawn = [expand([growth], children(HALVES), free_kv_slots=0) for _ in range(3)]
    assert drawn[0] == [Seen(growth.original.tree).root]
    assert {node.id for node in drawn[1]} == below
    assert drawn[2] == [] and growth.resting
    growth.commit(Commit(2, 0, (5,)))
    expand([growth], children(HALVES), free_kv_slots=0)
    assert len(expand([growth], children(HALVES), free_kv_slots=3)) == 3


def test_a_kind_that_does_not_redraw_expands_no_node_twice() -> None:
    growth = growth_of(Plan(num_steps=2))
    seen = set[int]()
    for number in range(1, 4):
        while drawn := expand([growth], children(HALVES)):
            assert not seen & {node.id for node in drawn if node.id}
            seen |= {node.id for node in drawn if node.id}
        assert not any(grow.rescored for grow in flush(growth))
        growth.commit(Commit(number, 0, (0,)))


def test_candidates_of_a_renewed_root_give_way_to_those_of_its_new_expansion() -> None:
    growth = growth_of(survival=0.2, redraws=True)
    grow_out(growth, children(HALVES))
    growth.commit(Commit(1, 0, (0,)))
    assert {node.token for node in Seen(growth.original.tree).root.children.values()} == {
        0
    }  # 1 is likely enough now, but old
    expand([growth], children({2: 0.9}))
    assert {node.token for node in Seen(growth.original.tree).root.children.values()} == {0, 2}


def believed(calibration: DistanceCalibration) -> list[list[float]]:
    """What is made of the children of three nodes of which nothing is guessed."""
    raw = np.log([[0.99, 0.01], [0.5, 0.01], [0.99, 0.9]])
    return np.exp(calibration.log_probabilities(raw, np.zeros(3, dtype=np.int64))).tolist()


def test_what_was_picked_below_a_renewed_root_teaches_of_its_new_expansion() -> None:
    calibration = DistanceCalibration()
    growth = growth_of(redraws=True, calibration=calibration, plan=Plan(num_steps=1, draft_ahead=False))
    expand([growth], children({0: 0.5}))
    growth.commit(Commit(1, 0, (0,)))
    expand([growth], children({3: 0.99, 4: 0.01}))
    (sure, unlikely), (even, _), (_, second) = believed(calibration)
    assert even > 0.55 and (sure, unlikely) == pytest.approx((0.99, 0.01), rel=1e-3), "of the first expansion alone"
    growth.commit(Commit(2, 0, (3,)))
    (surer, unlikelier), (same, _), (_, untold) = believed(calibration)
    assert surer > sure and unlikelier < unlikely
    assert (same, untold) == pytest.approx((even, second), rel=1e-3)


def test_a_tree_is_drawn_anew_even_if_there_is_no_room_for_more_nodes() -> None:
    growth = growth_of(max_nodes=3, redraws=True)
    expand([growth], children({0: 0.9}))
    expand([growth], children({0: 0.9, 1: 0.1}))
    assert growth.original.free_nodes == 0
    growth.commit(Commit(1, 0, (0,)))
    grow_nodes(growth.original, [NewNode(0, 2, -9.0)])
    assert growth.original.free_nodes == 0
    assert expand([growth], children({3: 0.5})) == [Seen(growth.original.tree).root]
    assert growth.resting


def test_a_stalled_session_rests_and_says_so_once_and_stirs_without_a_commit() -> None:
    growth = growth_of(survival=0.4)
    growth.stalled = True
    assert flush(growth) == [Grow(0, resting=True)]
    assert not expand([growth], children(HALVES))
    assert flush(growth) == []
    growth.stalled = False
    assert expand([growth], children(HALVES)) == [Seen(growth.original.tree).root]
    (grow,) = flush(growth)
    assert (list(grow.tokens), grow.resting) == ([0], False)


def test_a_session_that_stirs_and_finds_nothing_says_that_it_rests_again() -> None:
    growth = growth_of(survival=0.4)
    growth.stalled = True
    flush(growth)
    growth.stalled = False
    expand([growth], children({0: 0.1}))
    assert flush(growth) == [Grow(0, resting=True)]


def one_at_a_time(
    offers: dict[Growth, list[int]], width: int, free_kv_slots: int
) -> tuple[dict[Growth, list[int]], set[Growth]]:
    """What `choose` is to choose, and which sessions are starved: take the likeliest node of all until the expansion is full."""
    chosen, starved = {growth: list[int]() for growth in offers}, set[Growth]()

    def rank(growth: Growth) -> tuple[bool, float]:
        tree, slot = growth.original.tree, offers[growth][len(chosen[growth])]
        return slot != ROOT, tree.root_score - tree.scores[slot]

    while sum(map(len, chosen.values())) < width:
        left = [g for g, slots in offers.items() if g not in starved and len(slots) > len(chosen[g])]
        if not left:
            break
        growth = min(left, key=rank)
        slot = offers[growth][len(chosen[growth])]
        if slot != ROOT and free_kv_slots <= 0:
            starved.add(growth)
            continue
        free_kv_slots -= slot != ROOT
        chosen[growth].append(slot)
    return {growth: slots for growth, slots in chosen.items() if slots}, starved


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 12))
def test_one_expansion_holds_the_likeliest_nodes_of_all_sessions_that_find_room(
    rounds: list[int], width: int, free_kv_slots: int
) -> None:
    growths = [growth_of() for _ in rounds]
    for growth, count in zip(growths, rounds, strict=True):
        for _ in range(count):
            expand([growth], children(HALVES), width=3)
    offers = {growth: slots for growth in growths if (slots := growth.offers().tolist())}
    expected, starved = one_at_a_time(offers, width, free_kv_slots)
    assert {growth: slots.tolist() for growth, slots in choose(growths, width, free_kv_slots)} == expected
    for growth in starved - expected.keys():
        assert growth.resting


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_laws_hold_whatever_is_proposed_and_committed(data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 30))
    plan = Plan(num_steps=data.draw(st.integers(1, 3)), draft_ahead=data.draw(st.booleans()))
    growth = growth_of(
        plan,
        max_nodes=cap,
        survival=data.draw(st.sampled_from([0.002, 0.05])),
        max_depth=data.draw(st.sampled_from([1, 2, UNBOUNDED])),
        redraws=data.draw(st.booleans()),
        shares_root=data.draw(st.booleans()),
    )
    mirror = Mirror(1, 0, 3, cap, VOCAB)
    last_id, seen = 0, set[tuple[int, int, int]]()
    probabilities = st.lists(st.floats(1e-4, 1), min_size=0, max_size=VOCAB)

    def deliver() -> None:
        nonlocal last_id
        for grow in flush(growth):
            assert all(a < b for a, b in zip([last_id, *grow.ids], grow.ids, strict=False))
            last_id = max([last_id, *grow.ids])
            assert all(0 < i <= last_id for i in grow.rescored)
            for parent, token in zip(grow.parents, grow.tokens, strict=True):
                link = (grow.commits if parent == 0 else -1, parent, token)
                assert link not in seen
                seen.add(link)
            mirror.grow(grow)

    for _ in range(data.draw(st.integers(1, 8))):
        growth.stalled = data.draw(st.booleans())
        for _ in range(data.draw(st.integers(0, 4))):
            growth.stalled &= data.draw(st.booleans())
            chosen = choose([growth], data.draw(st.integers(1, 8)), 1 << 30)
            for _, slots in chosen:
                weights = [data.draw(probabilities) for _ in slots]
                totals = [max(1.0, sum(each)) for each in weights]
                shares = [
                    {t: w / total for t, w in enumerate(each)} for each, total in zip(weights, totals, strict=True)
                ]
                growth.add_children(children_of(shares))
            if data.draw(st.booleans()):
                deliver()
        tree = growth.original.tree
        assert len(tree) <= cap
        assert all(node.parent is not None and node.score <= node.parent.score for node in Seen(tree).nodes.values())
        draft = mirror.take(8, 4, plan.num_steps)
        picks = [data.draw(st.integers(0, VOCAB - 1)) for _ in draft.ids]
        path = draft.accept(picks)
        commit, _ = mirror.commit(draft, path, picks[path[-1]])
        ids = tree.ids.copy()
        applied = growth.commit(commit)
        assert len(applied.accepted) == len(applied.tokens) - 1
        survivors = [] if applied.new_slots is None else ids[applied.new_slots > ROOT].tolist()
        assert set(survivors) == {*Seen(tree).nodes} & {*ids.tolist()}
    growth.stalled = False
    grow_out(growth, children(HALVES))
    assert growth.resting
    deliver()
    assert mirror.resting
    assert Seen(mirror.tree).snapshot() == Seen(growth.original.tree).snapshot()


def test_another_plan_is_followed_at_once_and_answered() -> None:
    growth = growth_of(Plan(num_steps=1, draft_ahead=False))
    found = children(HALVES)
    grow_out(growth, found)
    (grow,) = flush(growth)
    assert grow.resting and flush(growth) == []
    growth.set_plan(Plan(num_steps=3, draft_ahead=False))
    assert not growth.resting
    grow_out(growth, found)
    (deeper,) = flush(growth)
    assert deeper.resting and deeper.ids[0] == grow.ids[-1] + 1
    deepest = max(node.position for node in Seen(growth.original.tree).root.descendants())
    assert deepest == growth.original.tree.root_position + 3
    growth.set_plan(Plan(num_steps=0))
    (nothing,) = flush(growth)
    assert nothing.resting and not nothing.ids, "a drafter that has nothing to add says so"


def after_root(cost_benefit: CostBenefit, found: Children) -> Growth:
    growth = growth_of(cost_benefit=cost_benefit)
    expand([growth], found)
    flush(growth)
    return growth


def test_of_equal_nodes_those_come_first_whose_verifier_takes_longer_for_a_token() -> None:
    quick, slow = (after_root(CostBenefit(1e-6, step_us), children(HALVES)) for step_us in (2_000, 20_000))
    ((growth, slots),) = choose([quick, slow], 1, 99)
    assert growth is slow
    assert len(slots) == 1


def test_nodes_that_are_not_worth_an_expansion_make_a_session_rest_until_its_next_commit() -> None:
    growth = after_root(
        CostBenefit(1e-6, step_us=20_000), children({0: 0.01})
    )  # saves 0.01 of a third of a step: 0.07 ms
    dear = LinearCost(0.5, 0.0)
    assert choose([growth], 64, 99, dear) == []
    assert flush(growth) == [Grow(0, resting=True)]
    growth.commit(Commit(1, 0, (5,)))
    assert [slots.tolist() for _, slots in choose([growth], 64, 99, dear)] == [[ROOT]], "a root is always worth it"


def test_without_draft_ahead_the_tree_is_grown_whatever_an_expansion_costs() -> None:
    growth = growth_of(Plan(num_steps=3, draft_ahead=False))
    for _ in range(3):
        ((_, slots),) = choose([growth], 64, 99, LinearCost(60.0, 0.0))
        growth.add_children(children_of([{0: 0.5}] * len(slots)))
    assert growth.resting


def test_an_expansion_is_as_wide_as_pays_and_the_rest_comes_with_the_next() -> None:
    growth = after_root(CostBenefit(1e-9, step_us=20_000), children({0: 0.6, 1: 0.3, 2: 0.05}))
    ((_, slots),) = choose([growth], 64, 99, LinearCost(0.002, 0.001))
    assert len(slots) == 2  # 0.6 / 3 < 0.9 / 4 > 0.95 / 5


def test_what_the_next_step_has_no_use_for_is_grown_all_the_same_by_who_drafts_ahead() -> None:
    growths = [growth_of(survival=0.2) for _ in range(2)]
    for growth, floor in zip(growths, (0.0, 0.9), strict=True):
        growth.commit(Commit(1, 0, (5,), step_us=2_000_000, floor=floor))
        expand([growth], children(HALVES))
    assert len(growths[0].original.tree) == len(growths[1].original.tree) > 0


def test_longer_steps_make_more_nodes_worth_sending() -> None:
    growth = growth_of(survival=0.2)
    for number, (step_us, nodes) in enumerate([(20_000, 2), (2_000_000, 4)], start=1):
        growth.commit(Commit(number, 0, (5,), step_us=step_us))
        expand([growth], children(HALVES))
        assert len(growth.original.tree) == nodes

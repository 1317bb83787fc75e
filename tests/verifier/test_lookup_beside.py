"""Lookup of the verifier beside a drafter: one tree of both, weighed by the record of both, and text that is the target's own."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.errors import InvalidRequest
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.speculation import Draft, Grow
from specsplit.values import Endpoint, PlanChanges, Sampling, Stopping, Vocabulary
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.forced import FIRST_ID, UNKNOWN_ID
from specsplit_verifier.sessions.joint_calibration import JointCalibration, Said
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.own_lookup import LOOKUP, Lookup
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from tests.support.drafting import POCKET, endpoint_of, pocket_drafters
from tests.support.sessions import session_of
from tests.support.slow import slowly
from tests.verifier.conftest import decode, recorded, verifier_over

WORDS = Vocabulary(1000)
TEXT = [1, 2, 3, 9, 2, 4, 1, 2]
"""Behind "1 2" came 3 9, which is looked up with survivals of 2/3 and 1/2; behind "2" alone also 4 1, with 1/6 and 1/9."""
DRAFTER = Endpoint("d", "d:1")
WIDE = TreeLimits(8, 4, 2)
WITHIN = st.integers(1, 12), st.integers(1, 4), st.integers(1, 6)


def paired(tokens: list[int]) -> tuple[DrafterPool, Session, DraftSession]:
    """A session with this text that a drafter serves and the verifier looks up for."""
    pool = DrafterPool(WORDS, 50, lookup=Lookup(WORDS, beside=True))
    session = session_of(request=DecodeRequest("r", tuple(tokens), drafter=DRAFTER, any_drafter=True))
    session.tokens = list(tokens)
    session.drafter = NoDrafter(needed=True)
    pool.resume(session, 0.0)
    assert isinstance(session.drafter, DraftSession)
    return pool, session, session.drafter


def grow(drafter: DraftSession, *nodes: tuple[int, int, int, float]) -> None:
    """The drafter grows (id, parent, token, probability given the parent)."""
    ids, parents, tokens, probabilities = zip(*nodes, strict=True)
    edges = tuple(math.log(each) for each in probabilities)
    drafter.grow(Grow(drafter.mirror.commits, ids, parents, tokens, edges, resting=True), 0.0)
    drafter.apply_grows(WIDE, prefilling=False)


def survivals(draft: Draft) -> list[float]:
    return [round(math.exp(each), 3) for each in draft.log_survivals]


def test_two_trees_are_one_by_hand() -> None:
    """Both have 3, the drafter as its node 1. Below it the drafter has 5 and lookup 9; 7 is the drafter's alone, 4 and 1 lookup's."""
    _, session, drafter = paired(TEXT)
    grow(drafter, (1, 0, 3, 0.5), (2, 0, 7, 0.25), (3, 1, 5, 0.8))
    draft = session.take(WIDE)
    assert draft.tokens == [2, 3, 5, 9, 7, 4, 1]
    assert draft.parents == [-1, 0, 1, 1, 0, 0, 5]
    assert survivals(draft) == [1.0, 0.667, 0.533, 0.5, 0.25, 0.167, 0.111]
    assert draft.ids[:3] == [0, 1, 3] and draft.ids[4] == 2 and drafter.nodes == 3 + 4
    looked_up = [draft.ids[place] for place in (3, 5, 6)]
    assert all(UNKNOWN_ID < each < FIRST_ID for each in looked_up) and len({*looked_up}) == 3
    assert drafter.log_survivals(TreeLimits(3, 4, 2)) == draft.log_survivals[1:3]
    assert len(drafter.log_survivals(WIDE._replace(topk=1))) == 2, "3 5"
    view = drafter.view(draft)
    assert sorted(view.ids) == sorted(draft.ids) and view.ids[:4] == [0, 1, 2, 3]


def test_the_drafter_hears_of_tokens_that_were_looked_up_as_commits_and_each_is_counted_for_who_had_it() -> None:
    pool, session, drafter = paired(TEXT)
    grow(drafter, (1, 0, 3, 0.5), (2, 1, 5, 0.8))
    draft = session.take(WIDE)
    path = draft.accept([{2: 3, 3: 9}.get(token, 6) for token in draft.tokens])
    assert [draft.tokens[place] for place in path] == [2, 3, 9]
    result = session.commit(draft, Accepted(path, 6), 1.0)
    told = [(commit.number, commit.deepest, [*commit.tokens]) for commit in result.reroot.commits]
    assert told == [(1, 1, [3, 9]), (2, 0, [6])], "node 1 was the drafter's, 9 its bonus, 6 the next"
    own, looked_up = pool.records["d:1", False], pool.records[LOOKUP, False]
    assert (own.steps, own.accepted) == (1, 1) and (looked_up.steps, looked_up.accepted) == (1, 2)
    assert session.tokens[-3:] == [3, 9, 6] and drafter.mirror.tree.root_position == len(session.tokens) - 1


def test_lookup_goes_on_when_the_drafter_is_lost_and_the_drafter_when_lookup_may_not() -> None:
    pool, session, _ = paired(TEXT)
    pool.lost(DRAFTER.address, [session], 1.0)
    assert session.drafter.address == LOOKUP and session.take(WIDE).tokens[:2] == [2, 3]
    assert pool.records[LOOKUP, False].sessions == 1 and not pool.records["d:1", False].sessions
    session.refused_until[LOOKUP] = math.inf
    pool.roster([Endpoint("e", "e:1")], [session], 2.0)
    assert session.drafter.address == "e:1" and session.take(WIDE).tokens == [2]
    assert pool.records[LOOKUP, False].sessions == 0


def test_a_draft_of_both_that_the_target_cannot_compute_leaves_lookup_and_then_nothing() -> None:
    pool, session, _ = paired(TEXT)
    error = InvalidRequest("logits", "are NaN")
    pool.give_up(session, error)
    pool.retry([session], 2.0)
    assert session.drafter.address == LOOKUP
    pool.give_up(session, error)
    pool.retry([session], 4.0)
    assert not session.drafter.attached


def test_without_the_setting_a_drafter_drafts_alone() -> None:
    pool = DrafterPool(WORDS, 50, lookup=Lookup(WORDS))
    session = session_of(request=DecodeRequest("r", tuple(TEXT), drafter=DRAFTER, any_drafter=True))
    session.tokens = list(TEXT)
    session.drafter = NoDrafter(needed=True)
    pool.resume(session, 0.0)
    assert session.drafter.address == DRAFTER.address and session.take(WIDE).tokens == [2]
    with pytest.raises(InvalidRequest, match="lookup_beside: is on, and lookup is not"):
        VerifierSettings(model=POCKET, lookup_beside=True)


def test_what_is_said_is_drawn_to_what_became_of_edges_of_which_both_said_as_much() -> None:
    """Of 400 edges that the drafter alone names and holds for likely one in ten is right, of those that both name nine in ten."""
    calibration = JointCalibration()
    alone, both, other = Said(-0.3, None), Said(-0.3, -0.9), Said(None, -0.9)
    for number in range(400):
        calibration.observe([alone, both], [number % 10 == 0, number % 10 != 0])
    found = [math.exp(each) for each in calibration.edges([alone, both, other])]
    assert found == pytest.approx([0.1, 0.9, math.exp(-0.9)], abs=0.05)


edges = st.none() | st.floats(-12.0, 0.0)


@given(st.lists(st.tuples(edges, edges, st.booleans()).filter(lambda each: each[:2] != (None, None)), max_size=50))
def test_no_edge_is_surer_than_certain_whatever_was_seen(seen: list[tuple[float | None, float | None, bool]]) -> None:
    calibration = JointCalibration()
    said = [Said(first, second) for first, second, _ in seen]
    calibration.observe(said, [went for _, _, went in seen])
    assert all(-math.inf < edge <= 0.0 for edge in calibration.edges(said))


@st.composite
def grown(draw: st.DrawFn) -> list[tuple[int, int, int, float]]:
    """Nodes of a drafter over six tokens, no parent with a token twice."""
    nodes: list[tuple[int, int, int, float]] = []
    links: set[tuple[int, int]] = set()
    for node_id in range(1, 1 + draw(st.integers(1, 12))):
        parent, token = draw(st.integers(0, node_id - 1)), draw(st.integers(0, 5))
        if (parent, token) not in links:
            links.add((parent, token))
            parent = parent if any(parent == each[0] for each in nodes) else 0
            if (parent, token) not in {each[1:3] for each in nodes}:
                nodes.append((node_id, parent, token, draw(st.sampled_from([0.9, 0.5, 0.1]))))
    return nodes


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_a_draft_of_both_is_a_tree_within_the_limits(text: list[int], data: st.DataObject) -> None:
    _, session, drafter = paired(text)
    for _ in range(3):
        if not drafter.mirror.seen:
            grow(drafter, *data.draw(grown()))
        limits = data.draw(st.builds(TreeLimits, *WITHIN, grammar=st.none()))
        expected = drafter.log_survivals(limits)
        draft = session.take(limits)
        count = len(draft.ids)
        assert draft.tokens[0] == session.tokens[-1] and count <= limits.num_draft_tokens
        assert draft.log_survivals[1:] == expected == sorted(expected, reverse=True)
        assert len({*draft.ids}) == count
        assert len({*zip(draft.parents, draft.tokens, strict=True)}) == count, "no node has a token twice below it"
        assert all(parent < place for place, parent in enumerate(draft.parents))
        assert all(draft.positions[place] == draft.positions[up] + 1 for place, up in enumerate(draft.parents) if place)
        assert max(draft.positions) - draft.positions[0] <= limits.num_steps
        assert all(draft.parents.count(place) <= limits.topk for place in range(count))
        picks = [data.draw(st.integers(0, 5)) for _ in draft.ids]
        path = draft.accept(picks)
        session.commit(draft, Accepted(path, picks[path[-1]]), 0.0)
        assert drafter.mirror.tree.root_position == len(session.tokens) - 1


PLAN = PlanChanges(num_steps=8, topk=4, num_draft_tokens=16, draft_ahead=False, wait_budget_us=10_000_000)
SAMPLINGS = [Sampling(), Sampling(0.9, seed=4), Sampling(1.1, seed=5, repetition_penalty=1.1)]
PROMPT = [*range(40, 60), *range(300, 320), *range(40, 60)]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("adaptive", ["static", *slowly("goodput")])
async def test_text_is_the_same_with_every_kind_of_drafter_and_lookup_beside_it(adaptive: str) -> None:
    def asked(sampling: Sampling, drafter: Endpoint | None = None) -> DecodeRequest:
        return DecodeRequest("r", PROMPT, sampling, Stopping(60, ignore_eos=True), PLAN, drafter)

    async with pocket_drafters() as drafters:
        async with verifier_over(POCKET, max_sessions=64, adaptive=adaptive) as verifier:
            alone = [(await decode(verifier, asked(sampling)))[0] for sampling in SAMPLINGS]
        settings = {"lookup": True, "lookup_beside": True, "max_sessions": 64, "adaptive": adaptive}
        async with verifier_over(POCKET, **settings) as verifier:
            steps = recorded(verifier)
            for drafter in drafters.values():
                at = endpoint_of(drafter)
                found = await asyncio.gather(*(decode(verifier, asked(sampling, at)) for sampling in SAMPLINGS))
                assert [tokens for tokens, _ in found] == alone, drafter.member_id
    parts = [part for step in steps for part in step.sessions]
    accepted = [part.draft.ids[place] for part in parts for place in part.accepted_path[1:]]
    assert any(each > UNKNOWN_ID for each in accepted) and any(each < UNKNOWN_ID for each in accepted)

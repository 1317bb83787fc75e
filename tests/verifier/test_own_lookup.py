"""Drafting by lookup in the verifier itself: the tree of a session, who has it, and that text is the target's own."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsplit.membership import HandOver
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Draft
from specsplit.values import Endpoint, Miss, NoDraftsCause, Plan, PlanChanges, Sampling, Stopping, Vocabulary
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.step import Accepted, TreeView
from specsplit_verifier.sessions.drafter_record import DrafterRecord
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.own_lookup import LOOKUP, Lookup, OwnLookup
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from tests.support.sessions import session_of
from tests.verifier.conftest import decode, recorded, verifier_over

WORDS = Vocabulary(1000)
WIDE = TreeLimits(16, 4, 8)
DRAFTER = Endpoint("d", "d:1")


def looked_up(tokens: list[int], lookup: Lookup | None = None, scope: bytes = b"") -> Session:
    """A session with this text, for which the verifier looks up."""
    session = session_of(request=DecodeRequest("r", tuple(tokens), scope=scope))
    session.tokens = list(tokens)
    session.drafter = (lookup or Lookup(WORDS)).begin(session, DrafterRecord())
    return session


def survivals(draft: Draft) -> list[float]:
    return [round(math.exp(each), 3) for each in draft.log_survivals]


def test_a_tree_worked_out_by_hand() -> None:
    """Behind "1 2" came 3 9: 1 of 1 1/2 shares, length 2; behind "2" alone also 4 1: half of what is left."""
    session = looked_up([1, 2, 3, 9, 2, 4, 1, 2])
    draft = session.take(TreeLimits(5, 4, 2))
    assert draft.tokens == [2, 3, 9, 4, 1]
    assert draft.parents == [-1, 0, 1, 0, 3]
    assert draft.positions == [7, 8, 9, 8, 9]
    assert survivals(draft) == [1.0, 0.667, 0.5, 0.167, 0.111]
    assert session.take(TreeLimits(3, 4, 2)) == draft.first(3)
    assert session.drafter.view(draft.first(3)) == TreeView(draft.ids, draft.parents, draft.tokens, draft.edges)


def test_what_was_committed_is_looked_up_and_hits_and_misses_are_told_apart() -> None:
    session = looked_up([1, 2, 3, 9, 2, 4, 1, 2])
    draft = session.take(TreeLimits(3, 4, 2))
    hit = session.commit(draft, Accepted([0, 1], 9), 0.0)
    assert (hit.hit, hit.miss, hit.reroot.cut, hit.accepted) == (True, None, 0, 1), "9 was a node"
    assert session.tokens[-2:] == [3, 9] and session.drafter.nodes == 0
    assert session.take(WIDE).tokens[:3] == [9, 2, 4], "as behind the first 9"
    wrong = session.commit(session.take(WIDE), Accepted([0], 7), 0.0)
    assert (wrong.hit, wrong.miss) == (False, Miss.WRONG)
    nothing = session.commit(session.take(WIDE), Accepted([0], 8), 0.0)
    assert (nothing.hit, nothing.miss, nothing.drafted) == (False, Miss.NONE, 0)
    ids = {*draft.ids[1:], *wrong.draft.ids[1:]}
    assert len(ids) == len(draft.ids) + len(wrong.draft.ids) - 2, "no id is given twice"


def test_nothing_is_drawn_that_the_step_has_no_use_for() -> None:
    lookup = Lookup(WORDS)
    drawn: list[int] = []
    for lookup.floor in (0.0, 0.6, 0.9):
        drawn.append(len(looked_up([1, 2, 3, 9, 2, 4, 1, 2], lookup).take(WIDE).tokens))
    assert drawn == sorted(drawn, reverse=True) and drawn[0] > drawn[-1] > 1


def test_the_output_of_a_session_that_is_over_is_known_to_its_client_alone() -> None:
    lookup = Lookup(WORDS)
    first = looked_up([1, 2], lookup, b"ann")
    first.commit(first.take(WIDE), Accepted([0], 5), 0.0)
    for token in (6, 7, 8):
        first.tokens.append(token)
    lookup.ended(first)
    assert looked_up([9, 5, 6], lookup, b"ann").take(WIDE).tokens == [6, 7, 8]
    assert looked_up([9, 5, 6], lookup, b"bob").take(WIDE).tokens == [6]
    assert looked_up([9, 1, 2], lookup, b"ann").take(WIDE).tokens == [2], "a prompt is not shared"


def waiting(
    pool: DrafterPool, *, plan: Plan | None = None, drafter: Endpoint | None = None, any_drafter: bool = True
) -> Session:
    """A session that begins to run, of a request that was placed with this drafter or without one."""
    session = session_of(request=DecodeRequest("r", (1,), drafter=drafter, any_drafter=any_drafter), plan=plan)
    session.drafter = NoDrafter(needed=drafter is not None)
    pool.resume(session, 0.0)
    return session


def looking_up() -> DrafterPool:
    return DrafterPool(WORDS, 50, lookup=Lookup(WORDS))


def test_who_wants_drafts_and_has_no_drafter_is_looked_up_for() -> None:
    assert isinstance(waiting(looking_up()).drafter, OwnLookup)
    assert not waiting(DrafterPool(WORDS, 50)).drafter.attached, "a verifier that does not look up"
    assert not waiting(looking_up(), any_drafter=False).drafter.attached, "a request that asks for no drafter"


def test_a_drafter_that_is_there_comes_first_and_lookup_is_back_when_it_is_lost() -> None:
    pool = looking_up()
    session = waiting(pool, drafter=DRAFTER)
    assert session.drafter.address == DRAFTER.address
    pool.lost(DRAFTER.address, [session], 1.0)
    assert session.drafter.address == LOOKUP and session.needs_drafter
    record = pool.records[LOOKUP, False]
    assert (record.sessions, record.movable) == (1, 1)
    pool.roster([Endpoint("e", "e:1")], [session], 2.0)
    assert session.drafter.address == "e:1" and not pool.records[LOOKUP, False].sessions
    pool.close(session)
    assert not pool.records["e:1", False].sessions


def test_a_session_that_is_preempted_may_have_a_drafter_later_if_it_might_before() -> None:
    pool = looking_up()
    placed, alone = waiting(pool, drafter=DRAFTER), waiting(pool)
    pool.lost(DRAFTER.address, [placed, alone], 1.0)
    for session in (placed, alone):
        pool.suspend(session)
        assert not session.drafter.attached
        pool.resume(session, 2.0)
        assert session.drafter.address == LOOKUP
    assert (placed.needs_drafter, alone.needs_drafter) == (True, False)
    assert pool.records[LOOKUP, False].sessions == 2


def test_drafts_that_the_target_cannot_compute_are_made_no_more() -> None:
    pool = looking_up()
    session = waiting(pool)
    pool.give_up(session, RuntimeError("NaN"))  # pyright: ignore[reportArgumentType]
    pool.retry([session], 5.0)
    assert not session.drafter.attached


def test_a_session_is_not_handed_over_from_lookup() -> None:
    pool = looking_up()
    session = waiting(pool)
    pool.hand_over(HandOver("d:1", Endpoint("e", "e:1"), 5), [session], 1.0)
    assert session.drafter.address == LOOKUP


def test_a_session_says_why_lookup_had_nothing() -> None:
    session = waiting(looking_up(), any_drafter=True)
    session.table.reserve(16)
    session.take(WIDE)
    assert session.undrafted is NoDraftsCause.EMPTY
    session.plan = Plan(num_steps=0)
    assert session.undrafted is NoDraftsCause.RESTING


async def test_a_text_that_repeats_itself_takes_fewer_steps_without_any_drafter(alphabet: Path) -> None:
    prompt = list(b"abcdefghijklmnopqrstuvwxyzab")
    async with verifier_over(alphabet, lookup=True) as verifier:
        steps = recorded(verifier)
        request = DecodeRequest("r", prompt, stopping=Stopping(40), any_drafter=True)
        tokens, end = await decode(verifier, request)
    assert bytes(tokens) == b"cdefghijklmnopqrstuvwxyzabcdefghijklmnop"
    assert end.speculation.accepted == 40 - end.speculation.steps > 20
    assert all(part.attached and not part.reroot.commit for step in steps for part in step.sessions)


@given(
    words=st.lists(st.lists(st.integers(97, 122), min_size=1, max_size=6), min_size=1, max_size=3),
    order=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    plan=st.sampled_from(
        [PlanChanges(), PlanChanges(num_steps=2, topk=1), PlanChanges(num_draft_tokens=3), PlanChanges(num_steps=0)]
    ),
    sampling=st.sampled_from([Sampling(), Sampling(6.0, seed=7), Sampling(frequency_penalty=0.5)]),
    adaptive=st.sampled_from(["static", "goodput"]),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_is_what_it_is_without_drafts(
    alphabet: Path, words: list[list[int]], order: list[int], plan: PlanChanges, sampling: Sampling, adaptive: str
) -> None:
    prompt = [token for number in order for token in words[number % len(words)]]

    async def written(*, lookup: bool) -> list[list[int]]:
        async with verifier_over(alphabet, lookup=lookup, adaptive=adaptive) as verifier:
            asked = [
                DecodeRequest(
                    "r", prompt[at:], sampling, Stopping(24, ignore_eos=True), plan, any_drafter=True, scope=b"one"
                )
                for at in (0, len(prompt) // 2)
            ]
            return [(await decode(verifier, each))[0] for each in asked]

    assert asyncio.run(written(lookup=True)) == asyncio.run(written(lookup=False))

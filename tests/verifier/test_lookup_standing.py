"""When lookup beside a drafter rests: while it brings less than its time would, and never for ever."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.clock import PricedClock
from specsplit.clock import ManualClock
from specsplit.sessions import DecodeRequest
from specsplit.speculation import Grow
from specsplit.values import Endpoint, Vocabulary
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.records.step import Accepted
from specsplit_verifier.sessions.draft_session import DraftSession
from specsplit_verifier.sessions.lookup_standing import LEAST, LookupPrice, LookupStanding
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.own_lookup import Lookup
from specsplit_verifier.sessions.rests import PROBE, RESTS
from specsplit_verifier.sessions.session import Session
from specsplit_verifier.sessions.tree_limits import TreeLimits
from tests.support.sessions import session_of

WORDS = Vocabulary(1000)
DRAFTER = Endpoint("d", "d:1")
WIDE = TreeLimits(8, 4, 2)
FIRST = math.ceil(math.log(1 - LEAST * 0.02) / math.log(0.98))
"""Steps, fading by 2 % each, that weigh `LEAST`."""


def rests(standing: LookupStanding, gains: Sequence[int], price: float) -> Iterator[bool]:
    """Whether lookup rests in each step; one that it works in gains so much."""
    for gained in gains:
        yield standing.resting
        if standing.resting:
            standing.rested()
        else:
            standing.stepped(gained, price)


def test_what_a_lookup_takes_is_worked_out_in_tokens() -> None:
    """0.2 ms at 400 tokens a second are 0.08 tokens. One of 12.8 ms, with a weight of 0.05, makes that 2 ** 0.3 times as much."""
    price = LookupPrice(ManualClock())
    price.took(0.0002)
    assert price.tokens == 0.0, "what is committed in that time nobody knows"
    price.rate = 400.0
    assert price.tokens == pytest.approx(0.08)
    price.took(0.0128)
    assert price.tokens == pytest.approx(0.08 * 2**0.3)


def test_lookup_that_brings_nothing_rests_longer_each_time_and_is_probed_in_between() -> None:
    found = list(rests(LookupStanding(), [0] * 10_000, 0.01))
    edges = [step for step in range(1, len(found)) if found[step] != found[step - 1]]
    lengths = [after - before for before, after in pairwise(edges)]
    assert edges[0] == FIRST
    assert lengths[0::2][:6] == [64, 128, 256, 512, 1024, 1024]
    assert set(lengths[1::2]) == {PROBE}


def test_a_probe_in_which_it_brings_much_ends_the_rest_and_the_next_rest_is_a_first_one() -> None:
    """Of three rests the third is of 256 steps. A probe with a token in every step ends it; the next one is of 64."""
    standing = LookupStanding()
    before = list(rests(standing, [0] * (FIRST + 64 + PROBE + 128 + PROBE + 256), 0.1))
    assert before.count(True) == 64 + 128 + 256
    assert not any(rests(standing, [1] * 50, 0.1))
    after = list(rests(standing, [0] * 500, 0.1))
    edges = [step for step in range(1, len(after)) if after[step] != after[step - 1]]
    assert edges[1] - edges[0] == RESTS[0]


def test_gains_are_weighed_with_what_they_cost() -> None:
    """A token in every tenth step: 0.1 a step, with an error of 0.04 over some 50 steps."""
    gains = [step % 10 == 0 for step in range(400)]
    assert not any(rests(LookupStanding(), gains, 0.08))
    assert any(rests(LookupStanding(), gains, 0.25))


@given(st.lists(st.integers(1, 8), min_size=1, max_size=300), st.floats(0.0, 1.0))
def test_lookup_that_pays_in_every_step_never_rests(gains: list[int], price: float) -> None:
    assert not any(rests(LookupStanding(), gains, price))


@given(st.lists(st.integers(-2, 1), max_size=100), st.integers(1, 4000))
def test_whatever_was_before_what_brings_nothing_any_more_works_ever_less(before: list[int], steps: int) -> None:
    """From any beginning: until the last gain has faded (within 400 steps), and then a probe behind every rest, twice as long each time."""
    standing = LookupStanding()
    list(rests(standing, before, 0.1))
    found = list(rests(standing, [0] * steps, 0.1))
    probes = math.ceil(math.log2(1 + steps / RESTS[0])) + steps // RESTS[1]
    assert found.count(False) <= 400 + PROBE * probes


@given(st.lists(st.integers(0, 3), max_size=3000))
def test_every_rest_ends(gains: list[int]) -> None:
    standing = LookupStanding()
    list(rests(standing, gains, 10.0))
    assert not all(rests(standing, [0] * (RESTS[1] + 1), 10.0))


def paired(lookup: Lookup, text: Sequence[int]) -> tuple[DrafterPool, Session, DraftSession]:
    """A session with this text that a drafter serves and the verifier looks up for."""
    pool = DrafterPool(WORDS, 50, lookup=lookup)
    session = session_of(request=DecodeRequest("r", tuple(text), drafter=DRAFTER, any_drafter=True), most=200)
    session.tokens = list(text)
    session.drafter = NoDrafter(needed=True)
    pool.resume(session, 0.0)
    assert isinstance(session.drafter, DraftSession)
    return pool, session, session.drafter


def step(pool: DrafterPool, session: Session, token: int) -> Sequence[int]:
    """One step of 200 tokens a second after which the target says `token` -> the tokens that were drafted."""
    assert isinstance(session.drafter, DraftSession)
    session.drafter.log_survivals(WIDE)
    draft = session.take(WIDE)
    reroot = session.commit(draft, Accepted([0], token), 0.0).reroot
    pool.commit([(session, reroot)], 1000, 0.0, 200.0)
    return draft.tokens[1:]


def test_at_rest_nothing_is_looked_up_and_the_text_is_followed_all_the_same() -> None:
    """Behind 1 stands now 2, now 3, and the target says neither: 0.4 ms of 200 tokens/s are 0.08 tokens that lookup does not bring.

    The drafter's nodes go on. Behind the rest what was said in it is looked up too: 5 behind 4.
    """
    lookup = Lookup(WORDS, beside=True, clock=PricedClock(0.0002))
    pool, session, drafter = paired(lookup, [1, 2, 1, 3, 1])
    for number in range(FIRST):
        step(pool, session, 500 + number if number % 2 else 1)
    assert pool.counters.lookups == FIRST and not pool.counters.lookup_rests
    drafter.grow(Grow(drafter.mirror.commits, (1,), (0,), (7,), (-0.5,), resting=True), 0.0)
    drafter.apply_grows(WIDE, prefilling=False)
    assert step(pool, session, 4) == [7] and drafter.nodes == 0
    for token in [5, *[600] * (RESTS[0] - 3), 4]:
        assert not step(pool, session, token)
    assert pool.counters.lookup_rests == RESTS[0] and pool.counters.lookups == FIRST
    assert step(pool, session, 0)[0] == 5
    assert pool.counters.lookups == FIRST + 1


def test_texts_that_repeat_themselves_are_judged_by_themselves_and_waits_are_looked_at_anew() -> None:
    lookup = Lookup(WORDS, beside=True, clock=PricedClock(0.0002))
    pool, session, drafter = paired(lookup, [1, 2, 1, 3, 1])
    for number in range(FIRST):
        step(pool, session, 500 + number if number % 2 else 1)
    assert not step(pool, session, 1)
    drafter.meet(repeating=True)
    assert step(pool, session, 1), "it is not known yet what lookup brings to such a text"
    drafter.meet(repeating=False)
    assert not step(pool, session, 1)
    other = paired(lookup, [1, 2, 1, 3, 1])[1]
    assert not step(pool, other, 1), "what is known is of the drafter, whatever the session"


@pytest.mark.parametrize(("grown", "rests"), [(0, False), (1, False), (2, True)])
def test_what_the_drafter_had_too_is_not_brought_by_lookup(grown: int, rests: bool) -> None:
    """The text goes round, and two tokens are accepted in every step: lookup alone brings both of them, beside a drafter that has the first
    one, and none beside one that has both. It takes half a token.
    """
    lookup = Lookup(WORDS, beside=True, clock=PricedClock(0.000625))
    pool, session, drafter = paired(lookup, [1, 2, 3, 4, 1, 2, 3, 4])
    lookup.price.rate = 400.0
    for _ in range(FIRST):
        first, commits, root = drafter.mirror.seen + 1, drafter.mirror.commits, session.tokens[-1]
        if grown:
            tokens = [root % 4 + 1, (root + 1) % 4 + 1][:grown]
            drafter.grow(Grow(commits, (first, first + 1)[:grown], (0, first)[:grown], tokens, [-0.5] * grown), 0.0)
            drafter.apply_grows(WIDE, prefilling=False)
        draft = session.take(WIDE)
        path = draft.accept([token % 4 + 1 for token in draft.tokens])
        session.commit(draft, Accepted(path, draft.tokens[path[-1]] % 4 + 1), 0.0)
        assert len(path) == 3
    assert pool.counters.lookups == FIRST
    assert len(session.take(WIDE).tokens) == (1 if rests else 3)

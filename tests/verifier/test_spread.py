"""Sessions that lose their drafter do not all go to the same one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specsplit.sessions import DecodeRequest
from specsplit.values import Endpoint, Sampling, Vocabulary
from specsplit_verifier.drafters.choice import ALIKE, KNOWN_STEPS, spread
from specsplit_verifier.drafters.pool import DrafterPool
from specsplit_verifier.sessions.drafter_record import DrafterRecord
from specsplit_verifier.sessions.no_drafter import NoDrafter
from specsplit_verifier.sessions.session import Session
from tests.support.sessions import session_of

DRAFTERS = [Endpoint(f"d{i}", f"d{i}:1") for i in range(6)]


def attached(pool: DrafterPool, number: int, drafter: Endpoint) -> Session:
    request = DecodeRequest("r", (1,), Sampling(), drafter=drafter)
    session = session_of(number, request, most=500)
    session.drafter = NoDrafter(needed=True)
    pool.attach(session, drafter, 0.0)
    assert session.drafter.attached
    return session


def counts(sessions: list[Session]) -> list[int]:
    found = Counter(each.address for session in sessions for each in DRAFTERS if session.drafter.at(each.address))
    return sorted(found.values(), reverse=True)


def test_the_sessions_of_lost_drafters_are_spread_over_those_that_are_left() -> None:
    pool = DrafterPool(Vocabulary(100), 50)
    sessions = [attached(pool, number, DRAFTERS[number % 6]) for number in range(12)]
    pool.roster(DRAFTERS, sessions, 0.0)
    for lost, left in ((5, [3, 3, 2, 2, 2]), (0, [3, 3, 3, 3]), (3, [4, 4, 4])):
        pool.lost(DRAFTERS[lost].address, sessions, 0.0)
        assert counts(sessions) == left


def test_a_drafter_that_brings_clearly_less_gets_none_while_a_better_one_is_there() -> None:
    better = DrafterRecord(sessions=9, steps=KNOWN_STEPS, accepted=2 * KNOWN_STEPS)
    worse = DrafterRecord(sessions=0, steps=KNOWN_STEPS, accepted=KNOWN_STEPS)
    alike = DrafterRecord(sessions=3, steps=KNOWN_STEPS, accepted=round(2.1 * ALIKE * KNOWN_STEPS))
    records = {
        (drafter.address, False): record for drafter, record in zip(DRAFTERS[:3], (better, worse, alike), strict=True)
    }
    best, second, third, unseen = DRAFTERS[:4]
    assert spread([best, second, third], records, sampled=False) == [third, best, second]
    assert spread([best, second, third, unseen], records, sampled=False) == [unseen, third, best, second]
    assert spread([best, second, third], records, sampled=True) == [second, third, best], "by such text alone"


numbers = st.integers(0, 40)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=6))
def test_nobody_is_left_out_and_what_is_equal_stays_in_order(told: list[tuple[int, int, int]]) -> None:
    drafters = DRAFTERS[: len(told)]
    records = {
        (each.address, False): DrafterRecord(steps, accepted, sessions=sessions)
        for each, (sessions, steps, accepted) in zip(drafters, told, strict=True)
    }
    assert sorted(spread(drafters, records, sampled=False), key=drafters.index) == drafters
    assert spread(drafters, {}, sampled=False) == drafters

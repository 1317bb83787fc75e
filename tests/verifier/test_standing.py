"""What is believed of a session's drafter, and when it rests: never for ever."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_verifier.acceptance import Acceptance, SessionAcceptance, Survivals, corrected
from specsplit_verifier.budget import pooled
from specsplit_verifier.standing import IDLE, PROBE, PROBED, RESTS, Standing

NONE: Survivals = np.empty(0)


def standing() -> Standing:
    return Standing("drafter", SessionAcceptance(Acceptance()))


def rests(session: Standing, steps: int) -> Iterator[bool]:
    """Whether the drafter rests in each of so many steps that find no node worth taking but in a probe."""
    for _ in range(steps):
        yield session.resting
        count = session.least
        session.stepped(np.full(count, 0.5), [])


def test_a_drafter_that_brings_nothing_rests_longer_each_time_and_is_probed_in_between() -> None:
    found = list(rests(standing(), 10_000))
    edges = [step for step in range(1, len(found)) if found[step] != found[step - 1]]
    lengths = [after - before for before, after in pairwise(edges)]
    assert edges[0] == IDLE
    assert lengths[0::2][:6] == [64, 128, 256, 512, 1024, 1024]
    assert set(lengths[1::2]) == {2 * PROBE}, "the steps of a probe, and a few that show that nothing came of it"


def test_a_probe_takes_nodes_and_ends_the_rest_if_nodes_pay_again() -> None:
    session = standing()
    list(rests(session, IDLE + RESTS[0]))
    assert not session.resting and session.least == PROBED
    for _ in range(PROBE):
        session.stepped(np.array([0.9]), [0])
    assert session.least == 0
    for _ in range(100):
        session.stepped(np.array([0.9]), [0])
        assert not session.resting
    found = list(rests(session, IDLE + RESTS[0] + 1))
    assert found.count(True) == RESTS[0], "it is a first rest again"


def test_a_session_without_nodes_now_and_then_does_not_rest() -> None:
    session = standing()
    for step in range(1000):
        session.stepped(NONE if step % IDLE else np.array([0.5]), [])
        assert not session.resting


def alone(ratios: Survivals, *survivals: float) -> list[float]:
    """What is made of the survivals of one session."""
    return corrected(np.array(survivals), np.zeros(len(survivals), dtype=np.int64), [ratios]).tolist()


def test_survivals_are_corrected_by_what_became_of_nodes_like_these() -> None:
    drafter = Acceptance()
    assert alone(drafter.ratios, 0.9, 0.2) == pytest.approx([0.9, 0.2]), "the drafter's word, at first"
    for _ in range(2000):
        drafter.observe(np.array([0.9, 0.2]), [0])  # those of 0.9 always are accepted, those of 0.2 never
    assert alone(drafter.ratios, 0.9, 0.2) == pytest.approx([1.0, 0.0], abs=0.05)


def test_a_session_of_other_text_is_believed_otherwise() -> None:
    drafter = Acceptance()
    good, bad = SessionAcceptance(drafter), SessionAcceptance(drafter)
    for _ in range(100):
        good.observe(np.array([0.5, 0.4]), [0, 1])
        bad.observe(np.array([0.5, 0.4]), [])
    (new,) = alone(SessionAcceptance(drafter).ratios, 0.5)
    assert alone(bad.ratios, 0.5)[0] < 0.2 < new < 0.8 < alone(good.ratios, 0.5)[0]


@given(
    st.lists(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=100),
)
def test_corrected_survivals_fall_in_every_session_and_are_probabilities(
    survivals: list[list[float]], outcomes: list[tuple[int, bool]]
) -> None:
    drafter, fallen = Acceptance(), [sorted(each, reverse=True) for each in survivals]
    sessions = [SessionAcceptance(drafter) for _ in fallen]
    for number, outcome in outcomes:
        sessions[number % len(sessions)].observe(np.array(fallen[number % len(sessions)]), [0] if outcome else [])
    pool = pooled(fallen)
    shown = corrected(pool.survivals, pool.owners, [session.ratios for session in sessions])
    assert ((shown >= -1e-12) & (shown <= 1 + 1e-12)).all()
    for number, session in enumerate(sessions):
        own = shown[pool.owners == number]
        assert (np.diff(own) <= 1e-12).all()
        assert own == pytest.approx(alone(session.ratios, *fallen[number])), "whoever is beside it"

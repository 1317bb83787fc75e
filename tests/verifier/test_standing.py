"""What is believed of a session's drafter, and when it rests: never for ever."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit_verifier.policy.acceptance import IDLE, PROBED, Acceptance, SessionAcceptance, Standing
from specsplit_verifier.sessions.rests import PROBE, RESTS


def standing() -> Standing:
    return Standing("drafter", SessionAcceptance(Acceptance()), SessionAcceptance(Acceptance()))


def rests(session: Standing, steps: int) -> Iterator[bool]:
    """Whether the drafter rests in each of so many steps that find no node worth taking but in a probe."""
    for _ in range(steps):
        yield session.resting
        count = session.least
        session.stepped([0.5] * count, [])


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
        session.stepped([0.9], [0])
    assert session.least == 0
    for _ in range(100):
        session.stepped([0.9], [0])
        assert not session.resting
    found = list(rests(session, IDLE + RESTS[0] + 1))
    assert found.count(True) == RESTS[0], "it is a first rest again"


def test_nodes_of_steps_that_were_looked_up_for_have_an_acceptance_of_their_own() -> None:
    session = standing()
    session.looked_up = True
    for _ in range(100):
        session.stepped([0.5, 0.5], [])
    assert session.acceptance.level < 0.9
    session.looked_up = False
    assert session.acceptance.level == 1.0
    session.stepped([0.5], [0])
    assert session.acceptance.level > 1.0


def test_a_session_without_nodes_now_and_then_does_not_rest() -> None:
    session = standing()
    for step in range(1000):
        session.stepped([] if step % IDLE else [0.5], [])
        assert not session.resting


def test_a_drafter_that_was_not_told_to_rest_and_brings_nodes_is_to_rest_no_longer() -> None:
    """Under a plan that stays nobody tells it."""
    session = standing()
    list(rests(session, IDLE))
    assert session.resting
    session.stepped([0.9], [0])
    assert not session.resting and session.least == 0
    found = list(rests(session, IDLE + RESTS[0] + 1))
    assert found.index(True) == IDLE and found.count(True) == RESTS[0], "a first rest, after as many steps as ever"


def test_a_rest_ends_by_a_probe_when_the_text_begins_to_repeat_itself() -> None:
    session, text = standing(), list(range(100))
    session.read(text)
    list(rests(session, IDLE))
    assert session.resting and not session.repeating
    session.read([*text, 40, 41])
    assert session.resting
    session.read([*text, 40, 41, 42])
    assert session.repeating and not session.resting and session.least == PROBED
    list(rests(session, 2 * PROBE))
    session.read([*text, *range(40, 60)])
    assert session.resting, "nothing came of it, though the text still repeats itself"


def corrected(session: SessionAcceptance, *survivals: float) -> list[float]:
    """What is made of the survivals of one session."""
    return list(session.corrected(survivals))


def test_survivals_are_corrected_by_what_became_of_nodes_like_these() -> None:
    drafter = Acceptance()
    assert corrected(SessionAcceptance(drafter), 0.9, 0.2) == pytest.approx([0.9, 0.2]), "the drafter's word, at first"
    for _ in range(2000):
        drafter.observe([0.9, 0.2], [0])  # those of 0.9 always are accepted, those of 0.2 never
    assert corrected(SessionAcceptance(drafter), 0.9, 0.2) == pytest.approx([1.0, 0.0], abs=0.05)


def test_a_session_of_other_text_is_believed_otherwise() -> None:
    drafter = Acceptance()
    good, bad = SessionAcceptance(drafter), SessionAcceptance(drafter)
    for _ in range(100):
        good.observe([0.5, 0.4], [0, 1])
        bad.observe([0.5, 0.4], [])
    (new,) = corrected(SessionAcceptance(drafter), 0.5)
    assert corrected(bad, 0.5)[0] < 0.7 * new < 1.3 * new < corrected(good, 0.5)[0]


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8),
    st.lists(st.tuples(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8), st.booleans()), max_size=50),
)
def test_corrected_survivals_fall_and_are_probabilities(
    survivals: list[float], outcomes: list[tuple[list[float], bool]]
) -> None:
    session = SessionAcceptance(Acceptance())
    for seen, outcome in outcomes:
        session.observe(seen, [0] if outcome else [])
    shown = corrected(session, *sorted(survivals, reverse=True))
    assert shown == sorted(shown, reverse=True)
    assert all(0.0 <= survival <= 1.0 for survival in shown)

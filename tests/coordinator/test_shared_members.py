"""A member that several coordinators share: what each of them may place on it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import SystemClock
from specsplit.membership import Heartbeat, Register
from specsplit.values import DrafterInfo, DrafterKind, Load, ModelInfo, Vocabulary
from specsplit_coordinator.members.breaker import Breaker
from specsplit_coordinator.members.member_state import MemberState

MODEL = ModelInfo("toy", Vocabulary(50, "ab"), 512)
NGRAM = DrafterInfo(DrafterKind.NGRAM, "", None, 512)


def member(role: ModelInfo | DrafterInfo, places: int = 16) -> MemberState:
    return MemberState(Register("m", "127.0.0.1:9", role, places), 0.0, Breaker(SystemClock()))


def told(state: MemberState, running: int, sessions: int, coordinators: int) -> MemberState:
    state.running = running
    state.update(Heartbeat(Load(sessions=sessions), coordinators=coordinators))
    return state


def test_a_coordinator_that_is_alone_goes_by_its_own_count() -> None:
    for coordinators in (0, 1):
        state = told(member(MODEL), 3, 9, coordinators)
        assert (state.elsewhere, state.free_places) == (0, 13)


def test_sessions_of_others_take_places_and_those_placed_since_the_report_do_too() -> None:
    state = told(member(MODEL), 3, 9, 2)
    assert (state.elsewhere, state.free_places, state.sessions) == (6, 7, 9)
    state.running += 2
    assert (state.free_places, state.sessions) == (5, 11)


def test_its_part_of_the_places_is_always_a_coordinators() -> None:
    state = told(member(MODEL), 0, 16, 2)
    assert state.free_places == 8, "the verifier lets them wait in order of arrival"
    assert told(state, 8, 24, 2).free_places == 0
    assert told(member(MODEL, 2), 0, 9, 8).free_places == 1


def test_a_drafter_that_others_have_filled_has_no_room() -> None:
    state = told(member(NGRAM), 2, 16, 2)
    assert (state.elsewhere, state.free_places) == (14, 0)


@given(st.integers(1, 8), st.lists(st.integers(0, 7), max_size=200), st.integers(1, 16))
def test_however_replicas_take_turns_the_verifier_never_has_more_waiting_than_it_lets_wait(
    replicas: int, turns: list[int], places: int
) -> None:
    """Each goes by a report that counts all sessions, and no session ends: the verifier lets as many wait as it runs."""
    views = [member(MODEL, max(places, replicas)) for _ in range(replicas)]
    for turn in turns:
        view = views[turn % replicas]
        told(view, view.running, sum(each.running for each in views), replicas)
        view.running += view.has_free_place
    assert sum(each.running for each in views) <= 2 * max(places, replicas)

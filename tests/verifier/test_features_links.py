"""What features do to the stream they share: when a drafter that reads is still alive."""

from __future__ import annotations

from specsplit.draft_events import Close, FeaturesRead, Open
from specsplit.features import FeatureLayout, Features
from specsplit.speculation import Commit, Grow
from specsplit.values import Plan, Sampling, Vocabulary
from specsplit_verifier.drafters.claims import LONGEST_READING_S, READING_S, Claims


def opened(tokens: int, width: int = 2) -> Open:
    return Open((1,) * tokens, Sampling(), Plan(), Vocabulary(16), 8, features=FeatureLayout(width))


def features(first: int, count: int) -> Features:
    return Features(first, count, bytes(count))


RESTING = Grow(0, resting=True)


def test_a_drafter_that_says_nothing_is_overdue_whatever_else_it_is_told() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(200), 0.0)
    for step in range(100):
        claims.sent(1, Commit(step + 1, 0, (3,)), step * 0.05)
        claims.sent(1, features(step * 20, 20), step * 0.05)
    assert not claims.overdue(5.0)
    assert claims.overdue(5.01), "a head answers an open at once"


def test_time_in_which_this_process_stood_still_is_nobody_elses_silence() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    claims.excuse(3.0)
    assert not claims.overdue(8.0)
    assert claims.overdue(8.01)


def test_a_drafter_without_features_gets_time_for_the_longest_prompt_since_it_was_last_heard() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(200, width=0), 0.0)
    claims.sent(2, opened(400, width=0), 1.0)
    claims.sent(3, opened(100, width=0), 2.0)
    assert not claims.overdue(7.0)
    assert claims.overdue(7.01), "5 s, and 2 s for the 400 tokens"


def test_that_features_were_read_is_no_answer_to_a_commit() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    claims.heard([(1, RESTING)], 0.0)
    claims.sent(1, features(0, 10), 1.0)
    claims.sent(1, Commit(1, 0, (3,)), 1.0)
    claims.heard([(1, FeaturesRead(10))], 2.0)
    assert not claims.overdue(7.0)
    assert claims.overdue(7.01)
    claims.heard([(1, RESTING)], 7.0)
    assert not claims.overdue(1e6)


def test_features_to_sessions_that_owe_none_do_not_put_off_for_ever_what_another_owes() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    for step in range(100):
        claims.sent(2, features(step, 1), step * 0.1)
    assert claims.overdue(5.0 + 100 * READING_S + 0.01)


def test_a_drafter_that_has_answered_gets_time_to_read_the_prompt() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    claims.sent(1, features(0, 1000), 0.0)
    claims.heard([(1, RESTING)], 1.0)
    claims.sent(1, Commit(1, 0, (3,)), 2.0)
    assert not claims.overdue(10.9), "1 + 5 + 1000 tokens of 5 ms"
    assert claims.overdue(11.1)


def test_reading_is_a_sign_of_life_and_leaves_less_to_read() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    claims.heard([(1, RESTING)], 0.0)
    claims.sent(1, features(0, 1000), 0.0)
    claims.sent(2, features(0, 5), 0.0)
    claims.sent(1, Commit(1, 0, (3,)), 0.0)
    claims.heard([(2, FeaturesRead(5))], 1.0)
    assert not claims.overdue(1.0 + 5.0 + 1000 * READING_S)
    claims.sent(1, Commit(2, 0, (3,)), 4.0)
    claims.heard([(7, FeaturesRead(1))], 4.0)
    claims.heard([(1, FeaturesRead(900))], 4.0)
    claims.sent(1, Commit(3, 0, (3,)), 4.0)
    assert not claims.overdue(9.4)
    assert claims.overdue(9.6)


def test_what_answers_nothing_is_no_sign_of_life() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(1), 0.0)
    claims.sent(2, features(0, 5), 0.0)
    claims.heard([(2, FeaturesRead(2))], 1.0)
    for tick in range(1, 12):
        for nothing in ([], [(7, RESTING)], [(7, FeaturesRead(3))], [(2, FeaturesRead(2))], [(2, FeaturesRead(99))]):
            claims.heard(nothing, 1.0 + tick * 0.5)
    assert not claims.overdue(6.0)
    assert claims.overdue(6.01)


def test_that_one_session_has_much_to_read_excuses_no_silence_towards_others() -> None:
    claims = Claims(5.0)
    claims.sent(1, opened(2), 0.0)
    claims.heard([(1, RESTING)], 0.0)
    claims.sent(2, opened(100_000, width=0), 1.0)
    claims.sent(3, features(0, 100_000), 1.0)
    claims.sent(1, Commit(1, 0, (3,)), 2.0)
    assert not claims.overdue(7.0)
    assert claims.overdue(7.01)
    claims.heard([(1, RESTING)], 7.0)
    assert not claims.overdue(7.0 + 5.0 + LONGEST_READING_S), "now only the open is due"
    assert claims.overdue(7.01 + 5.0 + LONGEST_READING_S), "whatever its length"


def test_features_alone_are_no_claim_and_a_close_takes_all_back() -> None:
    claims = Claims(5.0)
    claims.sent(1, features(0, 10), 0.0)
    assert not claims.overdue(1e6)
    claims.sent(1, opened(10), 1e6)
    claims.sent(1, Close(), 1e6)
    assert not claims.overdue(2e6)

"""The request log: what each request comes to, whom it tells, and how it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.errors import Exhausted
from specsplit.membership import Register
from specsplit.observe import Tracing
from specsplit.requests import Done, GenerateRequest, TextPrompt
from specsplit.values import FinishReason, ModelInfo, SpeculationStatistics, TraceScope, Usage, Vocabulary
from specsplit_coordinator.members.breaker import Breaker
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.requests.request_log import (
    ENDED_KEPT,
    QUEUED,
    REFUSED_KEPT,
    LoggedRequest,
    RequestLog,
    Totals,
)

ASKED = GenerateRequest(TextPrompt("x"), "mine")
USAGE = Usage(1, 6)
STOP = FinishReason.STOP


SEAT = MemberState(
    Register("v1", "127.0.0.1:9", ModelInfo("toy", Vocabulary(512), 512), 4), 0.0, Breaker(ManualClock())
)


class Heard:
    """A request log, and what it has told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = RequestLog(self.clock, Tracing("coordinator", TraceScope()))
        self.first: list[float] = []
        self.bursts: list[tuple[int, float]] = []
        self.ends: list[tuple[str, float]] = []
        self.log.on_first_tokens.append(lambda request, after_s: self.first.append(after_s))
        self.log.on_tokens.append(lambda request, number, after_s: self.bursts.append((number, after_s)))
        self.log.on_ended.append(lambda request, ending: self.ends.append((request.state, ending.after_s)))

    def receive(self, request: LoggedRequest, tokens: int, seconds: float, steps: int = 1, choice: int = 0) -> None:
        """`tokens` of a choice come `seconds` later, after so many `steps` of its own."""
        self.clock.advance(seconds)
        request.choices[choice].burst(tokens)
        request.choices[choice].received(SpeculationStatistics(steps=steps, accepted=tokens - 1))


def test_a_request_is_worked_through_by_hand() -> None:
    heard = Heard()
    with heard.log.track(ASKED, lambda: None) as request:
        assert (request.number, request.request_id, request.state) == (1, "mine", QUEUED)
        assert heard.log.requests == (request,)
        heard.receive(request, 3, 0.5)
        heard.receive(request, 4, 0.25, steps=2)
        request.choices[0].received(SpeculationStatistics(steps=3, accepted=3))
        request.choices[0].done = Done("mine", FinishReason.STOP, 0, USAGE, request.speculation, 0, "v1")
        heard.clock.advance(0.25)
    assert (heard.first, heard.bursts, heard.ends) == ([0.5], [(4, 0.25)], [("stop", 1.0)])
    assert (request.tokens, heard.log.totals) == (7, Totals(arrived=1, tokens=7, steps=3, accepted=3))
    assert heard.log.find(1) is request


def test_tokens_of_several_steps_that_come_at_once_are_one_burst() -> None:
    heard = Heard()
    with heard.log.track(ASKED, lambda: None) as request:
        heard.receive(request, 1, 0.5)
        heard.clock.advance(0.25)
        request.choices[0].burst(5)
        for steps, accepted in ((2, 1), (3, 3)):
            request.choices[0].received(SpeculationStatistics(steps=steps, accepted=accepted))
        request.choices[0].burst(0)
    assert heard.bursts == [(5, 0.25)]
    assert (request.tokens, heard.log.totals.tokens, heard.log.totals.steps) == (6, 6, 3)


@given(bursts=st.lists(st.tuples(st.integers(1, 9), st.floats(0.0001, 2)), min_size=1, max_size=20))
def test_the_intervals_of_a_request_add_up_to_the_time_between_its_first_and_last_tokens(
    bursts: list[tuple[int, float]],
) -> None:
    heard = Heard()
    with heard.log.track(ASKED, lambda: None) as request:
        for steps, (tokens, seconds) in enumerate(bursts, 1):
            heard.receive(request, tokens, seconds, steps)
    assert heard.first == [pytest.approx(bursts[0][1])]
    assert [tokens for tokens, _ in heard.bursts] == [tokens for tokens, _ in bursts[1:]]
    assert sum(after_s for _, after_s in heard.bursts) == pytest.approx(sum(seconds for _, seconds in bursts[1:]))


@pytest.mark.parametrize(
    ("failure", "remaining_s", "code"),
    [
        (Exhausted("full", 1.0), None, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ValueError("a bug"), 5.0, grpc.StatusCode.INTERNAL),
        (asyncio.CancelledError(), 5.0, grpc.StatusCode.CANCELLED),
        (asyncio.CancelledError(), None, grpc.StatusCode.CANCELLED),
        (asyncio.CancelledError(), 0.0, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_what_does_not_finish_ends_with_the_status_that_its_caller_sees(
    failure: BaseException, remaining_s: float | None, code: grpc.StatusCode
) -> None:
    heard = Heard()
    with pytest.raises(type(failure)), heard.log.track(ASKED, lambda: remaining_s) as request:
        raise failure
    assert request.ending is not None
    assert (request.ending.code, request.dones) == (code, ())
    assert heard.ends == [(code.name.lower(), 0.0)]


def pass_by(log: RequestLog, ran: bool) -> int:
    """Follow a request that ran, or was refused, to its end; gives its number."""
    with log.track(ASKED, lambda: None) as request:
        request.choices[0].verifier = SEAT if ran else None
    return request.number


def test_of_those_that_ended_the_last_are_known_latest_first() -> None:
    log = Heard().log
    with log.track(ASKED, lambda: None) as first:
        for _ in range(ENDED_KEPT + 2):
            pass_by(log, ran=True)
        numbers = [request.number for request in log.requests]
        assert numbers == [first.number, *range(ENDED_KEPT + 3, 3, -1)]
    assert log.find(2) is None


@given(ran=st.lists(st.booleans(), max_size=40))
def test_requests_that_never_ran_push_none_out_that_did_and_the_other_way_round(ran: list[bool]) -> None:
    log = Heard().log
    numbers = [(pass_by(log, each), each) for each in ran]
    did = [number for number, each in numbers if each][::-1][:ENDED_KEPT]
    did_not = [number for number, each in numbers if not each][::-1][:REFUSED_KEPT]
    assert [request.number for request in log.requests] == did + did_not
    assert [request.refused for request in log.requests] == [False] * len(did) + [True] * len(did_not)


def test_the_choices_of_a_request_are_one_request_whose_tokens_add_up() -> None:
    heard = Heard()
    with heard.log.track(replace(ASKED, n=2), lambda: None) as request:
        heard.receive(request, 2, 0.5, choice=1)
        heard.receive(request, 3, 0.25, choice=0)
        heard.receive(request, 4, 0.25, steps=2, choice=1)
        for choice in request.choices:
            assert request.dones == ()
            choice.done = Done("mine", FinishReason.STOP, 0, USAGE, choice.speculation, 0, "v1", index=choice.index)
    assert (heard.first, heard.bursts, heard.ends) == ([0.5], [(4, 0.5)], [("stop", 1.0)])
    assert (request.tokens, heard.log.totals.arrived, heard.log.totals.tokens, heard.log.totals.steps) == (9, 1, 9, 3)
    assert request.speculation == SpeculationStatistics(steps=3, accepted=5)
    assert [done.index for done in request.dones] == [0, 1]


def test_a_request_of_which_one_choice_was_cut_off_was_cut_off() -> None:
    heard = Heard()
    with heard.log.track(replace(ASKED, n=3), lambda: None) as request:
        assert request.reason is None
        for choice, reason in zip(request.choices, (STOP, FinishReason.LENGTH, STOP), strict=True):
            choice.done = Done("mine", reason, 0, USAGE, choice.speculation, 0, "v1", index=choice.index)
    assert heard.ends == [("length", 0.0)]


def test_a_request_of_which_one_choice_is_missing_has_not_finished() -> None:
    heard = Heard()
    with suppress(Exhausted), heard.log.track(replace(ASKED, n=2), lambda: None) as request:
        request.choices[0].done = Done("mine", FinishReason.STOP, 0, USAGE, SpeculationStatistics(), 0, "v1")
        raise Exhausted("full", 1.0)
    assert heard.ends == [("resource_exhausted", 0.0)]

"""The two threads of an engine: who holds the lock when, and what that makes of the order of events."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from specsplit.clock import SystemClock
from specsplit.errors import RankLost
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.engine.inbox import Inbox
from specsplit_verifier.engine.listener import Listener
from specsplit_verifier.records.events import Cancel, DrafterLost, FromDrafter, Inbound, SessionEvent

SENDERS, EACH, LATER = 4, 150, 60.0


class Core(EngineCore):
    """Keeps what it is told, and says so if two threads are in it at once."""

    def __init__(self, broken: Exception | None = None) -> None:
        """`broken`: what it raises in the place of both."""
        self.told: list[SessionEvent] = []
        self.settled = 0
        self._broken = broken
        self._within = threading.Lock()

    def handle(self, event: SessionEvent) -> None:
        assert self._within.acquire(blocking=False), "the other thread is at it"
        if self._broken is not None:
            raise self._broken
        time.sleep(0)
        self.told.append(event)
        self._within.release()

    def apply_grows(self) -> None:
        self.settled += 1
        if self._broken is not None:
            raise self._broken


class Counting(SystemClock):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def now(self) -> float:
        self.asked += 1
        return super().now()


def listening(
    core: Core, inbox: Inbox, send: Callable[[], None] = lambda: None, clock: Counting | None = None
) -> Listener:
    return Listener(core, send, inbox, clock or Counting())


def hear_and_fail(inbox: Inbox, error: Exception | None = None) -> None:
    """A step in which something comes twice."""
    for _ in range(2):
        inbox.put(FromDrafter("d", ()))
        time.sleep(0.2)
    if error is not None:
        raise error


def drain(core: Core, inbox: Inbox) -> None:
    while (event := inbox.take()) is not None:
        assert isinstance(event, FromDrafter | DrafterLost | Cancel)
        core.handle(event)


def senders(inbox: Inbox) -> list[threading.Thread]:
    """Each sends messages of its drafter, loses it now and then, and cancels sessions."""

    def work(sender: int) -> None:
        for number in range(EACH):
            event: Inbound = FromDrafter(f"d{sender}", (), number)
            if number % 10 == 7:
                event = DrafterLost(f"d{sender}", str(number))
            elif number % 10 == 3:
                event = Cancel(sender * EACH + number)
            inbox.put(event)
            time.sleep(0.0002 * (number % 3))

    return [threading.Thread(target=work, args=(sender,)) for sender in range(SENDERS)]


def test_every_event_is_taken_once_and_what_comes_of_a_drafter_in_order() -> None:
    core, inbox = Core(), Inbox()
    listener, at_work = listening(core, inbox), senders(inbox)
    for thread in at_work:
        thread.start()
    with listener.lock:
        step, until = 0, time.monotonic() + LATER
        while len(core.told) < SENDERS * EACH and time.monotonic() < until:
            step += 1
            if step % 5 == 0:
                inbox.wait(0.01)
            else:
                with listener.during_step(0.0005 * (step % 2)):
                    time.sleep(0.0003 * (step % 4))
            drain(core, inbox)
    inbox.close()
    assert len(core.told) == SENDERS * EACH
    for sender in range(SENDERS):
        numbers = [
            event.openings if isinstance(event, FromDrafter) else int(event.why)
            for event in core.told
            if isinstance(event, FromDrafter | DrafterLost) and event.address == f"d{sender}"
        ]
        assert numbers == sorted(numbers), "a message before a loss is not one behind it"
        cancelled = [event.session for event in core.told if isinstance(event, Cancel)]
        own = [session for session in cancelled if session // EACH == sender]
        assert own == sorted(own)


@pytest.mark.parametrize("length_s", [0.0, 0.05])
def test_who_waits_for_the_step_before_is_told_during_the_next_one_however_short_it_is(length_s: float) -> None:
    core, inbox, sent = Core(), Inbox(), list[int]()
    listener = listening(core, inbox, lambda: sent.append(step))
    step = 0
    with listener.lock:
        for step in range(20):
            with listener.during_step(LATER):
                time.sleep(length_s)
            assert sent == list(range(step + 1))
    inbox.close()


def test_during_a_step_drafters_are_listened_to_and_all_else_waits_for_its_end() -> None:
    core, inbox, heard = Core(), Inbox(), FromDrafter("d", ())
    listener = listening(core, inbox)
    with listener.lock:
        with listener.during_step(LATER):
            for event in (Cancel(1), heard, DrafterLost("d", "gone"), FromDrafter("d", (), 2)):
                inbox.put(event)
            until = time.monotonic() + LATER
            while not core.told and time.monotonic() < until:
                time.sleep(0.001)
        assert core.told == [heard]
        drain(core, inbox)
    inbox.close()
    assert core.told == [heard, Cancel(1), DrafterLost("d", "gone"), FromDrafter("d", (), 2)]


def test_what_is_grown_shortly_before_the_end_of_a_step_is_settled_within_it() -> None:
    core, inbox = Core(), Inbox()
    listener, settled = listening(core, inbox), list[int]()
    with listener.lock:
        for wait_s in (0.0, LATER):
            with listener.during_step(wait_s):
                inbox.put(FromDrafter("d", ()))
                inbox.put(FromDrafter("d", ()))
            settled.append(core.settled)
    inbox.close()
    assert 1 <= settled[0] <= 2 and settled[1] == settled[0], "in a step that has just begun there is time"


class Unsettled(Core):
    """One that takes events in, and breaks where it would apply them."""

    def handle(self, event: SessionEvent) -> None:
        self.told.append(event)


@pytest.mark.parametrize("kind", [Core, Unsettled])
def test_what_goes_wrong_while_it_listens_is_raised_where_the_step_is_run_and_nothing_is_taken_in_after_that(
    kind: type[Core], caplog: pytest.LogCaptureFixture
) -> None:
    core, inbox, clock = kind(broken=ZeroDivisionError("in the core")), Inbox(), Counting()
    listener = listening(core, inbox, clock=clock)
    with listener.lock, pytest.raises(ZeroDivisionError, match="in the core"), listener.during_step(0.0):
        hear_and_fail(inbox)
    inbox.close()
    assert core.settled <= 1 and len(core.told) <= 1
    assert clock.asked < 10, "it does not go round and round"
    assert "could not be taken in" in caplog.text and "in the core" in caplog.text


def test_a_step_that_fails_says_why_whatever_went_wrong_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    core, inbox = Core(broken=ZeroDivisionError("in the core")), Inbox()
    listener = listening(core, inbox)
    with listener.lock, pytest.raises(RankLost, match="rank 1"), listener.during_step(LATER):
        hear_and_fail(inbox, RankLost("rank 1 is gone"))
    inbox.close()
    assert "in the core" in caplog.text


def test_a_listener_rests_once_nobody_has_the_lock_any_more() -> None:
    core, inbox, clock = Core(), Inbox(), Counting()
    listener = listening(core, inbox, clock=clock)
    with listener.lock:
        for apply_s in (0.01, 0.1):
            with listener.during_step(apply_s):
                inbox.put(FromDrafter("d", ()))
    time.sleep(0.5)
    inbox.close()
    assert clock.asked < 10


def test_bells_ring_once_however_much_there_is_to_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    bells = list["Counted"]()

    class Counted(queue.SimpleQueue[None]):
        def __init__(self) -> None:
            bells.append(self)

    monkeypatch.setattr(queue, "SimpleQueue", Counted)
    inbox = Inbox()
    for _ in range(100):
        for _ in range(20):
            inbox.put(Cancel(1))
        inbox.begin_step()
        for _ in range(20):
            inbox.put(Cancel(2))
        inbox.end_step()
    assert [bell.qsize() for bell in bells] == [1, 1]


def test_an_event_that_was_taken_wakes_nobody_later() -> None:
    inbox = Inbox()
    inbox.put(Cancel(1))
    inbox.wait(LATER)
    assert inbox.take() == Cancel(1)
    began = time.monotonic()
    inbox.wait(0.05)
    assert inbox.take() is None and time.monotonic() - began >= 0.05


def test_a_closed_inbox_ends_the_thread() -> None:
    before = set(threading.enumerate())
    inbox = Inbox()
    listening(Core(), inbox)
    (thread,) = set(threading.enumerate()) - before
    inbox.close()
    thread.join(LATER)
    assert not thread.is_alive()

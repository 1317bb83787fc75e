"""The two threads of an engine: who holds the lock when, and what that makes of the order of events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from specsplit.clock import SystemClock
from specsplit_verifier.core import EngineCore
from specsplit_verifier.events import Cancel, DrafterLost, FromDrafter, Inbound, SessionEvent
from specsplit_verifier.inbox import Inbox
from specsplit_verifier.listener import Listener

SENDERS, EACH, LATER = 4, 150, 60.0


class Core(EngineCore):
    """Keeps what it is told, and says so if two threads are in it at once."""

    def __init__(self, broken: Exception | None = None) -> None:
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

    def settle(self) -> None:
        self.settled += 1


def listening(core: Core, inbox: Inbox, send: Callable[[], None] = lambda: None) -> Listener:
    return Listener(core, send, inbox, SystemClock())


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
        step = 0
        while len(core.told) < SENDERS * EACH:
            step += 1
            if step % 5 == 0:
                inbox.wait(0.01)
            else:
                with listener.during_step(time.monotonic() + 0.0005 * (step % 2)):
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
            with listener.during_step(time.monotonic() + LATER):
                time.sleep(length_s)
            assert sent == list(range(step + 1))
    inbox.close()


def test_during_a_step_drafters_are_listened_to_and_all_else_waits_for_its_end() -> None:
    core, inbox, heard = Core(), Inbox(), FromDrafter("d", ())
    listener = listening(core, inbox)
    with listener.lock:
        with listener.during_step(time.monotonic() + LATER):
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
            with listener.during_step(time.monotonic() + wait_s):
                inbox.put(FromDrafter("d", ()))
                inbox.put(FromDrafter("d", ()))
            settled.append(core.settled)
    inbox.close()
    assert 1 <= settled[0] <= 2 and settled[1] == settled[0], "in a step that has just begun there is time"


def test_what_goes_wrong_while_it_listens_is_raised_where_the_step_is_run() -> None:
    core, inbox = Core(broken=ZeroDivisionError("in the core")), Inbox()
    listener = listening(core, inbox)
    with (
        listener.lock,
        pytest.raises(ZeroDivisionError, match="in the core"),
        listener.during_step(time.monotonic() + LATER),
    ):
        inbox.put(FromDrafter("d", ()))
    inbox.close()


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

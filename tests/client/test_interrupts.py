"""Ctrl-C while gRPC begins a call waits until that has begun."""

from __future__ import annotations

import signal
import threading

import pytest

from specsplit.client.interrupts import undisturbed


def test_an_interrupt_comes_when_what_must_not_be_disturbed_is_done() -> None:
    done: list[str] = []

    def begin() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append("begun")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert done == ["begun"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failure_comes_as_it_is_and_ctrl_c_is_what_it_was() -> None:
    with pytest.raises(ValueError, match="closed"), undisturbed():
        raise ValueError("closed")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_and_handlers_of_others_are_left_alone() -> None:
    def begin() -> None:
        with undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        begin()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [before, signal.SIG_IGN]

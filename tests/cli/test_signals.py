"""Ctrl-C while the main thread waits in C."""

from __future__ import annotations

import ctypes
import signal
import threading

import pytest

from specsplit.cli.signals import ctrl_c_heard

poll = ctypes.CDLL(None).poll


def test_ctrl_c_that_did_not_wake_the_wait_of_the_main_thread_ends_it() -> None:
    def elsewhere() -> None:
        """Take the signal, so that the main thread's wait goes on."""
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def wait() -> None:
        with ctrl_c_heard():
            thread.start()
            poll(None, 0, -1)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Timer(0.1, elsewhere)
    with pytest.raises(KeyboardInterrupt):
        wait()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_wait_without_ctrl_c_leaves_everything_as_it_was() -> None:
    before, threads = signal.getsignal(signal.SIGINT), threading.active_count()
    with pytest.raises(EOFError), ctrl_c_heard():
        raise EOFError
    assert signal.getsignal(signal.SIGINT) is before
    assert threading.active_count() == threads
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

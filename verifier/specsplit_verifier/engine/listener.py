"""The thread that stands in for the engine thread while that runs a step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specsplit.clock import Clock
from specsplit_verifier.engine.core import EngineCore
from specsplit_verifier.engine.inbox import Inbox
from specsplit_verifier.records.events import DrafterLost, FromDrafter, Inbound

_log = logging.getLogger(__name__)


class Listener:
    """Tells of the step before, and takes in what drafters say, while the engine thread runs a step.

    All that belongs to the engine is touched under one lock. The engine thread releases it when a step begins and takes it back when the
    step is over. Nobody has to be woken for that: a listener that waits does not hold it.
    """

    def __init__(self, core: EngineCore, send: Callable[[], None], inbox: Inbox, clock: Clock) -> None:
        """`send`: tell of the step before."""
        self.lock = threading.Lock()
        self._core = core
        self._send = send
        self._inbox = inbox
        self._clock = clock
        self._deferred: list[Inbound] = []
        """What has come in this step and has to wait for its end."""
        self._apply_at = 0.0
        """From when on the mirrors take in what is grown in this step: shortly before it should be over."""
        self._look_at: float | None = None
        """`_apply_at` while something is queued for the mirrors; None: nothing is."""
        self._error: Exception | None = None
        """What went wrong while it listened; the engine thread raises it."""
        self._stepping = False
        """True while there is something to listen for; told under the lock, which the inbox's own flag is not."""
        self._delivered = True
        """False until the results of the step before are delivered."""
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    @contextmanager
    def during_step(self, apply_s: float) -> Iterator[None]:
        """Listen while the engine thread runs a step inside, without the lock. Raises what has gone wrong here meanwhile.

        After `apply_s` seconds the mirrors take in what was grown. What the listener was too late for is done before the end, so that a
        short step leaves nothing undone.
        """
        self._stepping, self._delivered, self._look_at = True, False, None
        self._apply_at = self._clock.now() + apply_s
        self._inbox.begin_step()
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()
            self._take_in()
            self._inbox.end_step(self._deferred)
            self._stepping, self._deferred, self._look_at = False, [], None
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while self._inbox.listen(self._seconds()):
            with self.lock:
                if self._stepping:
                    self._take_in()

    def _seconds(self) -> float | None:
        """How long to listen at most."""
        look_at = self._look_at  # once: the engine thread may be about to end the step
        return None if look_at is None else max(0.0, look_at - self._clock.now())

    def _take_in(self) -> None:
        if self._error is not None:
            return  # who knows what is true of the sessions now
        try:
            if not self._delivered:
                self._delivered = True
                self._send()
            while (event := self._inbox.take()) is not None:
                self._hear(event)
            if self._look_at is not None and self._clock.now() >= self._look_at:
                self._look_at = None
                self._core.apply_grows()
        except Exception as error:  # noqa: BLE001 (the edge of a thread: raised again on the engine's)
            _log.exception("the engine ends with its step: what came meanwhile could not be taken in")
            self._error, self._look_at = error, None

    def _hear(self, event: Inbound) -> None:
        """What drafters say is taken in, in order with the loss of one; all else has to wait."""
        if isinstance(event, FromDrafter) and not any(isinstance(each, DrafterLost) for each in self._deferred):
            self._core.handle(event)
            self._look_at = self._apply_at
        else:
            self._deferred.append(event)

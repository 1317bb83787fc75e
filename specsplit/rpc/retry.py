"""When a member that has left the cluster tries to come back, and what the log says of it."""

from __future__ import annotations

import logging

from specsplit.clock import Clock
from specsplit.observe import fields

_log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 0.5
"""Several tries fit into the time in which a verifier may come back to its sessions (`lost_after_ms`)."""
FLAPS_AFTER = 6
"""Tries in a row before the log hears that the member does not stay in."""
SETTLED_S = 5.0
"""A membership that lasted for at least so long counts: the break after it is a first one again."""


class Retry:
    """Waits longer with every try in a row, and says what changes: that the member is in, and why it is out, a new reason each time.

    One that comes in and falls out again and again, for one reason, is said to be out, and not to be in before that has lasted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_s = FIRST_RETRY_S
        self._in_a_row = 0
        """Tries since a membership that has lasted."""
        self._complaint = ""
        self._said_in = False
        """True if the last that the log heard is that the member is in."""
        self._flaps = False
        """True if the log has heard that it does not stay in."""
        self._entered_at: float | None = None
        """None: the member is out."""
        self._who: dict[str, object] = {}

    @property
    def _settled(self) -> bool:
        return self._entered_at is not None and self._clock.now() - self._entered_at >= SETTLED_S

    def entered(self, **who: object) -> None:
        """The member is registered, as `who`."""
        self._entered_at, self._who = self._clock.now(), who
        if not self._flaps:
            self._say_in()

    def stays(self) -> None:
        """The member is still registered; to be said now and then."""
        if self._settled:
            self._flaps = False
            self._say_in()

    def _say_in(self) -> None:
        if not self._said_in:
            self._said_in = True
            _log.info("joined the cluster", extra=fields(**self._who))

    def failed(self, error: Exception, what: str = "") -> float:
        """Tell that a try ended with `error`. Returns the seconds to wait before the next one.

        A `what` is logged in front of the error, and with its traceback.
        """
        if self._settled:
            self._wait_s, self._in_a_row, self._complaint, self._flaps = FIRST_RETRY_S, 0, "", False
        self._entered_at = None
        self._in_a_row += 1
        if repr(error) != self._complaint:
            self._complaint, self._said_in = repr(error), False
            _log.warning("not in the cluster, will retry: %s%s", what, error, exc_info=error if what else None)
        elif self._said_in and self._in_a_row >= FLAPS_AFTER:
            self._flaps, self._said_in = True, False
            _log.warning("not in the cluster, it comes in and falls out again, will retry: %s%s", what, error)
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LAST_RETRY_S)
        return wait_s

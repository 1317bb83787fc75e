"""Round trip and lateness of nodes, learnt from the highest id that a verifier had received when it made a commit.

A commit names the highest id that had come. From when the grow that held it was sent, that grow and then the commit have been on their way:
the least of these times, of recent commits, is the round trip. A grow that was sent longer ago than that, and had not come, is late: the
wire, or the verifier, cannot bear so many.
"""

from __future__ import annotations

from collections import deque
from typing import Final

RECENT_COMMITS: Final = 64
"""Recent commits over which the round trip is the least time."""
MOST_UNACKNOWLEDGED: Final = 1024
"""Grows that are remembered; a verifier that names no ids acknowledges none."""


class Acknowledgements:
    """The times at which nodes of one session were sent, and acknowledged by commits. Times are seconds of a clock."""

    def __init__(self) -> None:
        self._unacknowledged: deque[tuple[int, float]] = deque(maxlen=MOST_UNACKNOWLEDGED)
        """(highest id, time when it left) of every grow that is not acknowledged."""
        self._round_trips: deque[float] = deque(maxlen=RECENT_COMMITS)
        self.round_trip_s = 0.0
        """The least of recent commits; 0 if there was none."""

    def record_sent(self, last_id: int, now: float) -> None:
        """Note that a grow leaves."""
        self._unacknowledged.append((last_id, now))

    def acknowledge(self, node_id: int, now: float) -> float:
        """Take in the highest id that a commit names, 0 for none -> seconds by which the next nodes are late; 0: they are not."""
        left_at = None
        while self._unacknowledged and self._unacknowledged[0][0] <= node_id:
            left_at = self._unacknowledged.popleft()[1]
        if left_at is not None:
            self._round_trips.append(now - left_at)
            self.round_trip_s = min(self._round_trips)
        if not self._unacknowledged or not self._round_trips:
            return 0.0
        return max(0.0, now - self._unacknowledged[0][1] - self.round_trip_s)

"""How long nodes are on their way: learnt from what a verifier had been told when it made a commit.

A commit names the highest id that had come. The grow that held it has been on its way, and the commit on its way back, since that grow was
sent: the least of these times, of late, is the round trip. What was sent longer ago than a round trip, and had not come, is late: the
wire, or whoever reads it, has more than it can bear.
"""

from __future__ import annotations

from collections import deque
from typing import Final

RECENT_COMMITS: Final = 64
"""Commits of which the round trip is the least."""
MOST_UNACKNOWLEDGED: Final = 1024
"""Grows that are remembered; a verifier that names no ids acknowledges none."""


class Acknowledgements:
    """When nodes of one session were sent, and when the verifier had seen them. Times are seconds of a clock."""

    def __init__(self) -> None:
        self._unacknowledged: deque[tuple[int, float]] = deque(maxlen=MOST_UNACKNOWLEDGED)
        """Highest id of every grow that has not been acknowledged, and when it left."""
        self._round_trips: deque[float] = deque(maxlen=RECENT_COMMITS)
        self.round_trip_s = 0.0
        """The least of late; 0 if nothing is known."""

    def record_sent(self, last_id: int, now: float) -> None:
        """Note that a grow leaves."""
        self._unacknowledged.append((last_id, now))

    def acknowledge(self, node_id: int, now: float) -> float:
        """Take in the highest id that a commit names, 0 for none; returns by how much the next nodes are late (0: they are not)."""
        left_at = None
        while self._unacknowledged and self._unacknowledged[0][0] <= node_id:
            left_at = self._unacknowledged.popleft()[1]
        if left_at is not None:
            self._round_trips.append(now - left_at)
            self.round_trip_s = min(self._round_trips)
        if not self._unacknowledged or not self._round_trips:
            return 0.0
        return max(0.0, now - self._unacknowledged[0][1] - self.round_trip_s)

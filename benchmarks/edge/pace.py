"""The times of steps: multiples of one interval on the clock that all processes of a machine share, so that a token can tell its own."""

from __future__ import annotations

import time
from typing import Final

INTERVAL_S: Final = 0.02
"""Between two steps; each gives every session one token."""
TOLD: Final = 2048
"""A token is the number of its step, modulo this: the size of the pocket target's vocabulary. It comes round after 41 s."""


def step() -> int:
    """The number of the step that is due, or has been for less than an interval."""
    return int(time.monotonic() / INTERVAL_S)


def wait_s(number: int) -> float:
    """Seconds until a step is due; negative if it has been."""
    return number * INTERVAL_S - time.monotonic()


def late_s(token: int) -> float:
    """Seconds since the step that gave a token was due, if that was less than 41 s ago."""
    now = time.monotonic()
    steps = int(now / INTERVAL_S)
    return now - (steps - (steps - token) % TOLD) * INTERVAL_S

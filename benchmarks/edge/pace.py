"""The times of steps: multiples of an interval on the clock that all processes of a machine share, so that a token can tell its own.

A prompt says the interval, in two characters, and how many verifiers take turns, in a third.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

TOLD: Final = 2048
"""A token is the number of its step, modulo this. It comes round after so many intervals."""
_UNIT_S: Final = 1e-4
_DIGITS: Final = 64
PROMPT: Final = 3
"""Characters of a prompt."""
_ZERO: Final = ord("0")
SHORTEST_S: Final = _UNIT_S
LONGEST_S: Final = _UNIT_S * (_DIGITS**2 - 1)


def prompt_of(interval_s: float, verifiers: int = 1) -> str:
    """The text that asks for a step every so many seconds, rounded to 0.1 ms, SHORTEST_S to LONGEST_S; verifiers take turns."""
    units = round(min(max(interval_s, SHORTEST_S), LONGEST_S) / _UNIT_S)
    return "".join(chr(_ZERO + digit) for digit in (*divmod(units, _DIGITS), verifiers))


def asked(prompt: Sequence[str]) -> tuple[float, int]:
    """What a prompt asks for by its last PROMPT characters: the interval, and the number of verifiers."""
    high, low, verifiers = (ord(each) - _ZERO for each in prompt[-PROMPT:])
    return (high * _DIGITS + low) * _UNIT_S, verifiers


def step(every_s: float) -> int:
    """The number of the step that is due, or has been for less than an interval."""
    return int(time.monotonic() / every_s)


def wait_s(number: int, every_s: float) -> float:
    """Seconds until a step is due; negative if it has been."""
    return number * every_s - time.monotonic()


def late_s(token: int, every_s: float) -> float:
    """Seconds since the step that gave a token was due, if that was less than TOLD intervals ago."""
    now = time.monotonic()
    steps = int(now / every_s)
    return now - (steps - (steps - token) % TOLD) * every_s

"""Threads of GNU OpenMP, on which torch computes on a CPU: how long one that waits for the others keeps its core busy."""

from __future__ import annotations

import os
from typing import Final

SPINS: Final = "3000"
"""Looks at a barrier before a thread sleeps at it: some 50 us, since to wake it takes as long.

Of its own accord GNU OpenMP spins for 3 ms, or for the whole slice that the scheduler gives, while the thread that it waits for may be
waiting for that very core: beside a drafter on its cores a verifier then takes several times as long (docs/log.md, 2026-11-27)."""
_DECIDED: Final = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def sleep_at_barriers() -> None:
    """Let threads that wait go to sleep soon, unless the environment says how they are to wait.

    To be called before torch is imported: GNU OpenMP reads its environment when it is loaded.
    """
    if not any(name in os.environ for name in _DECIDED):
        os.environ["GOMP_SPINCOUNT"] = SPINS

"""The Python interpreter of a process with small steps and a large heap: settings that keep its own housekeeping out of a step."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
YOUNG: Final = 50_000
"""New objects between two collections of the young. Python's own 700 come together several times a step, for nothing: dead trees
free themselves."""


def switch_often() -> None:
    """Let threads that hand each other small things wait 0.5 ms for one another, and not the usual 5 ms, which is a step."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage in here, and leave what is there at the end out of collection for good.

    Modules make hundreds of thousands of objects that stay: walking through them again and again is a sixth of the time that torch and
    transformers take.
    """
    gc.disable()
    try:
        yield
    finally:
        _freeze()
        gc.enable()


def freeze_heap() -> None:
    """Leave all objects of this moment out of garbage collection for good, and collect new ones less often.

    For the moment in which everything is loaded:
    torch and transformers make half a million objects that live as long as the process; a full collection walks through them with
    all threads stopped, for up to a second (docs/log.md, 2026-11-21). They are let go when the process ends: extension modules report
    what is still there then as leaked.
    """
    gc.collect()
    _freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def _freeze() -> None:
    gc.freeze()
    atexit.unregister(gc.unfreeze)  # once, however often this is called
    atexit.register(gc.unfreeze)

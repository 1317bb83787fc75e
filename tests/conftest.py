"""What every test has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The suite runs in several processes: threads of one forward would only wait for one another. Before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels are interpreted where there is no GPU to run them. Before triton is loaded, which torch does by itself.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What starts the suite in the background may have these ignored, which processes inherit; the tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: a busy machine is no reason to fail.
settings.register_profile("specsplit", deadline=None, print_blob=True)
settings.load_profile("specsplit")


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """The services that a module starts are forked from one process that has imported everything."""
    from tests.support.forked import forking

    with forking():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole clusters first: they take longest, and the other process of a parallel run has the rest to do meanwhile."""
    items.sort(key=lambda item: "system" not in item.path.parts)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What services are forked from imports for seconds, on a busy machine for minutes: before the first test, whose time is limited."""
    if session.config.option.collectonly:
        return
    if any("forked" in getattr(item, "fixturenames", ()) for item in session.items):
        from tests.support.forked import ready

        ready()

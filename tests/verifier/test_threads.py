"""A target is loaded and stepped on one thread, so torch has one pool of threads for its operations and not two."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specsplit.errors import LoadError
from specsplit.model_thread import ModelThread
from tests.support.drafting import POCKET

THREADS = 3
COUNTS = """
import asyncio, os, sys, threading
from functools import partial
from pathlib import Path
from specsplit.clock import SystemClock
from specsplit.model_thread import ModelThread
from specsplit.sessions import DecodeRequest
from specsplit.settings import VerifierSettings
from specsplit.values import Stopping
from specsplit_verifier.edge.service import load_target
from specsplit_verifier.edge.verifier import Verifier

def others():  # those that are not Python's
    return len(os.listdir("/proc/self/task")) - threading.active_count()

async def run():
    settings = VerifierSettings(model=Path(sys.argv[1]), threads=int(sys.argv[2]))
    clock, before, thread = SystemClock(), others(), ModelThread("engine")
    verifier = Verifier(settings, await thread.load(partial(load_target, settings, clock)), clock, thread=thread)
    loaded = others()
    async for _ in verifier.decode(DecodeRequest("r", [1, 2, 3] * 40, stopping=Stopping(30))):
        pass
    print(loaded - before, others() - loaded)
    await verifier.close()

asyncio.run(run())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_steps_start_no_threads_beside_those_that_loading_has_started() -> None:
    command = [sys.executable, "-c", COUNTS, str(POCKET), str(THREADS)]
    counted = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    in_loading, in_steps = map(int, counted.stdout.split())
    assert in_loading >= THREADS - 1, "the pool of one thread, which works along"
    assert in_steps == 0, "another thread has a pool of its own"


def test_what_nobody_waits_for_is_logged_if_it_fails_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    thread = ModelThread("toy")

    def fail() -> None:
        raise ValueError("it is odd")

    thread.start(fail)
    assert thread.submit(lambda: 7).result(10) == 7 and thread.idle(10)
    assert "work on the thread of the model failed" in caplog.text and "ValueError: it is odd" in caplog.text
    thread.close()


async def test_a_thread_whose_loading_fails_is_closed() -> None:
    thread = ModelThread("a thread that fails to load")
    with pytest.raises(LoadError, match="no such folder"):
        await thread.load(_refuse)
    for _ in range(1000):
        if all(each.name != "a thread that fails to load" for each in threading.enumerate()):
            return
        await asyncio.sleep(0.01)
    pytest.fail("it goes on")


def _refuse() -> None:
    raise LoadError("no such folder")

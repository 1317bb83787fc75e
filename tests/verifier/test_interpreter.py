"""A serving process is not stopped by Python's own housekeeping."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from specsplit.clock import SystemClock
from specsplit.settings import DrafterSettings
from specsplit.values import DrafterKind
from specsplit_drafter.edge.service import load_table
from tests.verifier.conftest import verifier_over


async def test_what_is_loaded_is_left_out_of_garbage_collection(alphabet: Path) -> None:
    gc.unfreeze()
    async with verifier_over(alphabet):
        assert gc.get_freeze_count() > 100_000, "torch and transformers are"
        assert sys.getswitchinterval() < 0.001
    gc.unfreeze()
    load_table(DrafterSettings(kind=DrafterKind.STANDALONE, model=alphabet), SystemClock())
    assert gc.get_freeze_count() > 100_000


def test_nothing_is_left_out_any_more_when_the_process_ends() -> None:
    code = """
import atexit, gc
from specsplit.interpreter import freeze_heap
atexit.register(lambda: print(gc.get_freeze_count()))  # behind what is registered later
freeze_heap()
print(gc.get_freeze_count())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, ended.stdout.split())
    assert frozen > 1000 and left == 0


def test_modules_are_imported_without_collections_and_left_out_of_later_ones() -> None:
    code = """
import gc
from specsplit.interpreter import importing
try:
    with importing():
        print(int(gc.isenabled()))
        raise ModuleNotFoundError
except ModuleNotFoundError:
    print(int(gc.isenabled()), gc.get_freeze_count())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    within, behind, frozen = map(int, ended.stdout.split())
    assert (within, behind) == (0, 1) and frozen > 1000

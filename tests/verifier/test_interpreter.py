"""A serving process is not stopped by Python's own housekeeping."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from specsplit.settings import DrafterSettings
from specsplit.values import DrafterKind
from specsplit_drafter.service import load_table
from tests.verifier.conftest import verifier_over


async def test_what_is_loaded_is_left_out_of_garbage_collection(alphabet: Path) -> None:
    gc.unfreeze()
    async with verifier_over(alphabet):
        assert gc.get_freeze_count() > 100_000, "torch and transformers are"
        assert sys.getswitchinterval() < 0.001
    gc.unfreeze()
    load_table(DrafterSettings(kind=DrafterKind.STANDALONE, model=alphabet))
    assert gc.get_freeze_count() > 100_000

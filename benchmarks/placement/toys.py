"""Verifiers and drafters that are nothing but members, and what is placed on them."""

from __future__ import annotations

from typing import Final

from specsplit.membership import Register
from specsplit.values import Adapter, DrafterInfo, DrafterKind, ModelInfo, Vocabulary
from specsplit_coordinator.cluster.placement_request import PlacementRequest

PLACES: Final = 32
TAKEN: Final = 0.6
"""Share of all places that are taken."""
TARGET: Final = Vocabulary(50, "aa")
TEXT: Final = PlacementRequest(range(64), 256)


def verifier(number: int, adapters: tuple[Adapter, ...] = ()) -> Register:
    return Register(f"verifier-{number}", "a:1", ModelInfo("toy", TARGET, 4096, adapters=adapters), PLACES)


def drafter(number: int) -> Register:
    return Register(f"drafter-{number}", "a:1", DrafterInfo(DrafterKind.NGRAM, "", None, 4096), 4)

"""The calls that bring tokens, by their paths."""

from __future__ import annotations

from typing import Final

GENERATE: Final = "/specsplit.v1.CoordinatorService/Generate"
DECODE: Final = "/specsplit.v1.VerifierService/Decode"

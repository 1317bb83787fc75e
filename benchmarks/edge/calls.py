"""The calls that bring tokens, by their paths."""

from __future__ import annotations

from typing import Final

GENERATE: Final = "/specsplit.v1.CoordinatorService/Generate"
DECODE: Final = "/specsplit.v1.VerifierService/Decode"
SESSIONS: Final = "/specsplit.v1.VerifierService/DecodeSessions"
COMPLETIONS: Final = "/v1/completions"
"""Of the OpenAI API, which a gateway has."""

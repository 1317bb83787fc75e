"""How often a choice was let down, and whether it is placed once more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit_coordinator.placement import has_other
from specsplit_coordinator.registry import Seat

MAX_PLACEMENTS = 3
"""Verifiers that one choice is tried on without a new token, at most: a request that brings verifiers down must not meet all of them."""


class Stalls:
    """Counts placements in a row that brought no token."""

    def __init__(self) -> None:
        self._tokens = 0
        self._in_a_row = 0

    def progressed(self, tokens: int) -> bool:
        """True if a choice that has received so many tokens has got one since it was last let down."""
        return tokens > self._tokens

    def goes_on(self, tokens: int, failed: Seat, verifiers: Sequence[Seat]) -> bool:
        """A verifier let the choice down behind so many tokens. False if it is to end with that.

        A verifier that is still in the cluster, and has failed so often that nobody expects anything of it, is not waited for.
        """
        self._in_a_row = 1 if self.progressed(tokens) else self._in_a_row + 1
        self._tokens = tokens
        if self._in_a_row >= MAX_PLACEMENTS:
            return False
        gone = failed.draining or failed.lost_because is not None
        return gone or failed.breaker.failures < MAX_PLACEMENTS or has_other(verifiers, failed)

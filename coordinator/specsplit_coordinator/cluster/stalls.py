"""How often a choice was let down in vain, and whether it is placed once more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from specsplit_coordinator.cluster.placement import has_other
from specsplit_coordinator.members.seat import Seat

MAX_PLACEMENTS = 3
"""Verifiers that one choice is tried on without a new token, at most: a request that brings verifiers down must not meet all of them."""


class Stalls:
    """Counts placements in a row that brought no new token. Those that brought one are bounded by time alone."""

    def __init__(self, tokens: int = 0) -> None:
        """`tokens`: those that the choice began with."""
        self._tokens = tokens
        self._in_a_row = 0

    def goes_on(self, tokens: int, failed: Seat, verifiers: Sequence[Seat]) -> bool:
        """A verifier let the choice down behind so many tokens. False if it is to end with that.

        A verifier that is still in the cluster, and has failed so often that nobody expects anything of it, is not waited for.
        """
        self._in_a_row = 0 if tokens > self._tokens else self._in_a_row + 1
        self._tokens = tokens
        if self._in_a_row >= MAX_PLACEMENTS:
            return False
        gone = failed.leaving or failed.absent
        return gone or failed.breaker.failures < MAX_PLACEMENTS or has_other(verifiers, failed)

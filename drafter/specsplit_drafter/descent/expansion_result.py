"""The result of an expansion, on the host: the children of a frontier, and the levels below it, which come in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specsplit.errors import SpecsplitError
from specsplit.model.tensors.transfer import on_host
from specsplit.tree import Ints
from specsplit_drafter.descent.descent import DeviceLevel
from specsplit_drafter.descent.device_ranking import Ranked
from specsplit_drafter.descent.ranking import not_finite
from specsplit_drafter.drafts.proposer import Children, DrawnLevel

_RANKED: Final = 3
_DRAWN: Final = 6
"""Tensors of a frontier's ranking, and of a level that was drawn."""


class ExpansionResult:
    """The result of one expansion of some sessions."""

    def __init__(self, frontier: Ranked, drawn: Sequence[DeviceLevel]) -> None:
        """Copy everything to the host, which waits for the device."""
        tensors = [frontier.tokens, frontier.raw, frontier.finite]
        for level in drawn:
            ranked = level.children
            tensors += [level.parents, level.tokens, level.scores, ranked.tokens, ranked.raw, ranked.finite]
        arrays: list[NDArray[Any]] = on_host(tensors)
        tokens, raw, self._finite = arrays[:_RANKED]
        self._frontier = Children(tokens, raw)
        self._levels = [arrays[start : start + _DRAWN] for start in range(_RANKED, len(arrays), _DRAWN)]

    def children(self, rows: Ints, positions: Ints, number: int | None) -> Children | SpecsplitError:
        """Look up the children of nodes [n] at these rows and positions, and the levels that were drawn below them.

        number: the session's place in the descent; None: it has no levels. Returns an error if logits behind any node are not finite.
        """
        broken = positions.compress(~self._finite.take(rows))
        levels: list[DrawnLevel] = []
        for parents, tokens, scores, *ranked in self._levels if number is not None else ():
            count = int(np.count_nonzero(np.isfinite(scores[number])))  # the best stand first
            if not count or len(broken):
                break
            first = (number or 0) * len(tokens[0])
            below, raw, finite = (part[first : first + count] for part in ranked)
            levels.append(DrawnLevel(parents[number, :count], tokens[number, :count], Children(below, raw)))
            positions = positions.take(levels[-1].parents) + 1
            broken = positions.compress(~finite)
        if len(broken):
            return not_finite(int(broken[0]))
        of_frontier = self._frontier.at(rows)
        return Children(of_frontier.tokens, of_frontier.log_probabilities, levels)

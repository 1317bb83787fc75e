"""The frontier of one expansion, with its nodes numbered over all sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specsplit.tree import Ints
from specsplit_drafter.drafts.proposer import FrontierPart, SessionKey
from specsplit_drafter.kinds.model_session import ModelSession


class NumberedPart(NamedTuple):
    """One session's part of the frontier."""

    part: FrontierPart
    session: ModelSession
    positions: Ints
    """[n] positions of the session's nodes."""
    number: int
    """Number of the session's first node among those of all sessions."""


class NumberedFrontier:
    """The nodes of a frontier, in order."""

    def __init__(self, frontier: Sequence[FrontierPart], sessions: Mapping[SessionKey, ModelSession]) -> None:
        self.parts: list[NumberedPart] = []
        self._count = 0
        for part in frontier:
            session = sessions[part.session]
            self.parts.append(NumberedPart(part, session, session.positions(part.slots), self._count))
            self._count += len(part.slots)

    def rows(self, wanted: Sequence[int]) -> dict[SessionKey, Ints]:
        """Look up, by session, the indices in `wanted` of its nodes; sessions without nodes in it are left out."""
        row_of = np.full(self._count, -1)
        row_of[wanted] = np.arange(len(wanted))
        found = {each.part.session: row_of[each.number : each.number + len(each.positions)] for each in self.parts}
        return {session: rows for session, rows in found.items() if rows[0] >= 0}

    def at(self, wanted: Sequence[int]) -> tuple[list[NumberedPart], list[int], list[int]]:
        """Look up nodes by number [m] -> their parts, their slots and their positions."""
        owners = np.arange(len(self.parts)).repeat([len(each.positions) for each in self.parts]).take(wanted)
        slots = np.concatenate([each.part.slots for each in self.parts]).take(wanted)
        positions = np.concatenate([each.positions for each in self.parts]).take(wanted)
        return [self.parts[owner] for owner in owners.tolist()], slots.tolist(), positions.tolist()

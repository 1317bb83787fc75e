"""Isolation of faults: a fault of one session ends that session alone, though sessions are expanded together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from specsplit.errors import RankLost, SpecsplitError
from specsplit_drafter.drafts.proposer import ExpansionOutcome, FrontierPart, SessionKey

_log = logging.getLogger(__name__)
_Part = TypeVar("_Part")

Outcomes: TypeAlias = dict[SessionKey, ExpansionOutcome]
"""Outcomes by session; a session that is missing is not yet done."""

MOST_FAULTS: Final = 3
"""Expansions in a row, each of a single session, that may fail; after that the fault is taken to be the drafter's."""


class FaultIsolation:
    """Runs the parts of all sessions at once, and each by itself if that fails."""

    def __init__(self) -> None:
        self._faults = 0
        """Expansions in a row that failed for every session."""

    def expand(
        self,
        frontier: Sequence[FrontierPart],
        parts: Mapping[SessionKey, _Part],
        run: Callable[[Sequence[_Part]], Outcomes],
    ) -> list[ExpansionOutcome]:
        """Expand all parts with `run` -> the outcome of each session, which is an error if the session alone fails.

        `run` gets the parts of some sessions, and may get a part again. An exception that it raises for every one of several sessions is no
        session's fault, and is raised; so is RankLost.
        """
        try:
            found = run(list(parts.values()))
            self._faults = 0
        except RankLost:  # no session is at fault
            raise
        except Exception as error:  # noqa: BLE001 (whose fault it is shows when each is tried by itself)
            found = self._one_by_one(parts, run, error)
        return [found.get(part.session) for part in frontier]

    def _one_by_one(
        self, parts: Mapping[SessionKey, _Part], run: Callable[[Sequence[_Part]], Outcomes], fault: Exception
    ) -> Outcomes:
        _log.error("an expansion of %d sessions failed, trying each by itself", len(parts), exc_info=fault)
        found: Outcomes = {}
        failed: Outcomes = {}
        for session, part in parts.items():
            try:
                found.update(run([part]))
            except RankLost:
                raise
            except Exception as error:  # noqa: BLE001 (it ends this session)
                failed[session] = error_of(error)
        self._faults = self._faults + 1 if len(failed) == len(parts) else 0
        if self._faults and (len(parts) != 1 or self._faults >= MOST_FAULTS):
            raise fault
        return found | failed


def error_of(fault: Exception) -> SpecsplitError:
    """Make the error that a session's verifier gets for an unexpected exception."""
    return SpecsplitError(f"the drafter failed on this session, its log says how: {type(fault).__name__}: {fault}")

"""The forwards of a group of drafters: in a turn all ranks run the same steps of their model.

    exchange the rows of every step  →  for each step in which a rank has rows, in order: a forward on all ranks

A rank that has nothing to expand takes part without rows. One whose model has failed does the same in the steps that are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specsplit.clock import Clock
from specsplit.errors import RankLost
from specsplit.ranks.lockstep import Agreed, Lockstep, Proposal
from specsplit.ranks.rank import Rank
from specsplit_drafter.drafts.draft_model import DraftModel, ExpansionInput
from specsplit_drafter.drafts.record import RankTurn


class GroupForwards:
    """The forwards of a model whose MLPs or experts are shared out over ranks. Belongs to the engine's thread."""

    def __init__(self, model: DraftModel, lockstep: Lockstep, clock: Clock) -> None:
        self.rank = Rank(lockstep, clock)
        self._model = model
        self._lockstep = lockstep
        self._clock = clock
        self._records: list[RankTurn] = []

    def run(self, work: Sequence[ExpansionInput], sessions: int) -> list[Tensor]:
        """Run the forwards of an expansion, whose input is given by step -> the logits of every step in which this rank has rows.

        sessions: how many this rank has. Raises RankLost, and once the turn is over what a forward of this rank has raised.
        """
        rows = tuple(part.num_tokens for part in work)
        self._lockstep.turn(Proposal(unfinished=sessions, steps=rows), sum(rows), 0)
        started = self._clock.now()
        try:
            return self._forwards(work, self._agreed)
        finally:
            self._record(started)

    def run_idle(self, sessions: int) -> float:
        """Take a turn without rows -> for how many seconds to rest then. Raises RankLost."""
        self.run([ExpansionInput() for _ in self._model.pools], sessions)
        return 0.0 if self._agreed.runs else self._agreed.rest_s

    def take_turns(self) -> tuple[RankTurn, ...]:
        """Take the records of the turns with a forward since the last call."""
        records, self._records = self._records, []
        return tuple(records)

    @property
    def _agreed(self) -> Agreed:
        agreed = self._lockstep.agreed
        assert agreed is not None, "there was a turn"
        return agreed

    def _forwards(self, work: Sequence[ExpansionInput], agreed: Agreed) -> list[Tensor]:
        logits: list[Tensor] = []
        failed: Exception | None = None
        for step, (part, blocks) in enumerate(zip(work, self._model.blocks, strict=True)):
            try:
                with blocks.turn(agreed.rows_of(step)):
                    if part.rows and failed is None:
                        logits.append(self._model.run(step, part))
            except RankLost:
                raise
            except Exception as error:  # noqa: BLE001 (the other ranks go on to the next step)
                failed = error
        if failed is not None:
            raise failed
        return logits

    def _record(self, started: float) -> None:
        ended = self.rank.end_turn(started)
        assert ended is not None, "there was a turn"
        agreed, costs = ended
        if agreed.runs:
            self._records.append(RankTurn(costs, agreed.idle))

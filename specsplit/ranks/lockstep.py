"""Turns: what all ranks of a group do together before each of their forwards.

    propose ──> agree ──> run: all of them a forward, if any rank has rows; those without rows run it idle
                    └───> rest: nobody has rows, but somebody may soon

A rank that is alone has no turns, and whatever it proposes is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Final

from specsplit.clock import Clock
from specsplit.errors import RankLost
from specsplit.membership import GroupRank
from specsplit.ranks.demand import EAGER, NUMBERS, Demand, of_all
from specsplit.ranks.mesh import Mesh, Numbers
from specsplit.values import Plan

REST_S: Final = 0.002
"""The longest rest between two turns of a wave."""
_PLAN: Final = len(fields(Plan))


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one rank brings to a turn."""

    rows: int = 0
    """Tokens of its step, or of its expansion; 0: it has none, or its sessions wait for their drafters."""
    kv_tokens: int = 0
    """Tokens whose KV its step reads."""
    unfinished: int = 0
    """Sessions that run or wait here."""
    rest_us: int = round(REST_S * 1e6)
    """For how long it would rest if nobody has rows, in microseconds."""
    plan: Plan = field(default_factory=Plan)
    """The plan that its controller wants."""
    demand: Demand = EAGER
    """What its rows need of a captured forward."""
    steps: Numbers = ()
    """How many of a drafter's rows are of each step of its model; every rank tells equally many steps."""

    @property
    def numbers(self) -> Numbers:
        """The proposal as numbers, as ranks tell it to each other."""
        plan = map(int, astuple(self.plan))
        return (self.rows, self.kv_tokens, self.unfinished, self.rest_us, *plan, *self.demand.numbers, *self.steps)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Proposal:
        """Read what `numbers` wrote."""
        rows, kv_tokens, unfinished, rest_us, *others = numbers
        *plan, draft_ahead = others[:_PLAN]
        demand, steps = Demand.of(others[_PLAN : _PLAN + NUMBERS]), tuple(others[_PLAN + NUMBERS :])
        return cls(rows, kv_tokens, unfinished, rest_us, Plan(*plan, draft_ahead=bool(draft_ahead)), demand, steps)


NOTHING: Final = Proposal()
"""No rows, and no sessions."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What every rank knows of a turn. Only `rank` differs from rank to rank, so all of them draw the same conclusions."""

    rank: int
    """The rank that has this copy."""
    proposals: Sequence[Proposal]
    """The proposals of all ranks, by rank."""

    @property
    def rows(self) -> list[int]:
        """Rows of all ranks, by rank."""
        return [each.rows for each in self.proposals]

    def rows_of(self, step: int) -> list[int]:
        """Rows of one step of a drafter's model, by rank."""
        return [each.steps[step] for each in self.proposals]

    @property
    def demand(self) -> Demand:
        """The demand that meets all ranks: which captured forward the turn is, the same on every one of them."""
        return of_all([each.demand for each in self.proposals])

    @property
    def runs(self) -> bool:
        """True if there is a forward."""
        return any(self.rows)

    @property
    def idle(self) -> bool:
        """True if that forward has no rows of this rank."""
        return not self.proposals[self.rank].rows

    @property
    def others_rows(self) -> int:
        """Tokens that the other ranks brought."""
        return sum(self.rows) - self.proposals[self.rank].rows

    @property
    def unfinished(self) -> bool:
        """True if there is a session on any rank."""
        return any(each.unfinished for each in self.proposals)

    @property
    def rest_s(self) -> float:
        """For how long all rest if nobody has rows: the least that was proposed, and never long."""
        return min(REST_S, *(each.rest_us * 1e-6 for each in self.proposals))

    @property
    def plan(self) -> Plan | None:
        """The plan that most sessions stand behind, of several that of the lowest rank; None if there is no session."""
        votes: dict[Plan, int] = {}
        for each in self.proposals:
            if each.unfinished:  # who abstains has no say in which of equals is the first either
                votes[each.plan] = votes.get(each.plan, 0) + each.unfinished
        return max(votes, key=lambda plan: votes[plan], default=None)  # the first of equals


class Lockstep:
    """The turns of one rank. `turn` belongs to the thread that runs its forwards; the rest may be read between two steps."""

    def __init__(self, mesh: Mesh, clock: Clock, drawn: int = 0) -> None:
        """`drawn`: names this incarnation of the group; that of rank 0 counts. The first thing that all ranks exchange. Raises RankLost."""
        self.group: GroupRank | None = None
        """Which rank of which group this is; None: it is alone."""
        if mesh.size > 1:
            self.group = GroupRank(f"{mesh.exchange((drawn,))[0][0]:x}", mesh.rank, mesh.size)
        self.alone: Final = self.group is None
        self.agreed: Agreed | None = None
        """The turn before; None: there has been none."""
        self._mesh = mesh
        self._clock = clock
        self._waited_s = 0.0

    def turn(self, proposal: Proposal, rows: int, kv_tokens: int, demand: Demand = EAGER) -> bool:
        """Propose a step of so many tokens, and hear what the others propose -> whether there is a forward. Raises RankLost.

        Not to be asked by one that is alone.
        """
        began = self._clock.now()
        gathered = self._mesh.exchange(replace(proposal, rows=rows, kv_tokens=kv_tokens, demand=demand).numbers)
        self.agreed = Agreed(self._mesh.rank, [Proposal.of(numbers) for numbers in gathered])
        self._waited_s += self._clock.now() - began
        return self.agreed.runs

    @property
    def rows(self) -> Sequence[int]:
        """Rows of the turn that was agreed upon last, by rank; none for a rank that is alone."""
        return () if self.agreed is None else self.agreed.rows

    @property
    def demand(self) -> Demand:
        """What all ranks need of a captured forward in that turn; none will do for one that is alone, which has no turns."""
        return EAGER if self.agreed is None else self.agreed.demand

    def abort(self, why: str) -> RankLost:
        """End the group, since this rank cannot go on; the others read why. Returns the error that says so. Any thread may call it."""
        return self._mesh.abort(why)

    def close(self) -> None:
        """Part from the others in peace: no turn is on its way, and none will be."""
        self._mesh.close()

    def take_waited_s(self) -> float:
        """Seconds that this rank has waited for the others since this was last asked."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

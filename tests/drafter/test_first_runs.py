"""What the first run of a shape takes is learnt by nobody in the drafter."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from specsplit.clock import ManualClock
from specsplit.first_runs import FirstRuns
from specsplit.records import Eager, GraphStatistics
from specsplit.speculation import Grow
from specsplit_drafter.drafts.proposer import Children, FrontierPart
from specsplit_drafter.drafts.record import Cycle
from specsplit_drafter.engine.engine import Engine
from specsplit_drafter.engine.session_table import Outgoing
from tests.drafter.toys import TableProposer, open_event, table_of

COLD_S, WARM_S = 1.0, 0.001


@given(st.lists(st.lists(st.integers(0, 70), min_size=2, max_size=2), max_size=30))
def test_a_shape_is_met_once_and_sizes_up_to_a_power_of_two_are_one(sizes: list[list[int]]) -> None:
    runs, met = FirstRuns(), set[tuple[int, ...]]()
    for asked in sizes:
        shape = tuple(next(power for power in range(8) if size <= 2**power) for size in asked)
        assert runs.is_first(*asked) == (shape not in met)
        met.add(shape)


class Cold(TableProposer):
    """Takes long for the first expansion of a number of nodes, and for those that meet and that capture the shape of a graph, by number."""

    def __init__(self, clock: ManualClock, met: int = -1, captured: int = -1) -> None:
        super().__init__(lambda sequence: {0: 0.4, 1: 0.3, 2: 0.2} if len(sequence) < 5 else {})
        self.graphs = GraphStatistics()
        self._clock = clock
        self._met, self._captured = met, captured
        self._sizes = FirstRuns()

    def expand(self, frontier: Sequence[FrontierPart], levels: int = 1) -> list[Children | None]:
        number = len(self.batches)
        if number == self._met:
            self.graphs = GraphStatistics(eager={Eager.FIRST: 1})
        if number == self._captured:
            self.graphs = GraphStatistics(1, eager={Eager.FIRST: 1})
        special = self._sizes.is_first(sum(len(part.slots) for part in frontier)) or number in (
            self._met,
            self._captured,
        )
        self._clock.advance(COLD_S if special else WARM_S)
        return super().expand(frontier, levels)


class Quiet:
    """An outbox that tells when an expansion is over that found nothing left to do."""

    def __init__(self) -> None:
        self.cycles = 0
        self.rested = threading.Event()

    def deliver(self, outgoing: Outgoing, cycle: Cycle | None) -> None:
        self.cycles += cycle is not None
        if any(isinstance(event, Grow) and event.resting for events in outgoing.values() for _, event in events):
            self.rested.set()


def learnt(proposer: Cold, clock: ManualClock) -> float | None:
    """The mean of what an engine has learnt of its expansions when all that is worth it is grown."""
    outbox, table = Quiet(), table_of(proposer, survival=0.01)
    engine = Engine(table, clock, outbox, threading.Event().set)
    engine.start()
    engine.receive(engine.open_stream(), [(1, open_event([3]))])
    assert outbox.rested.wait(20.0)
    engine.stop()
    assert len(proposer.batches) > 6
    return table.expansion_cost.mean_s


def test_no_first_expansion_of_a_size_is_counted_in_what_expansions_cost() -> None:
    clock = ManualClock()
    mean_s = learnt(Cold(clock), clock)
    assert mean_s is not None and abs(mean_s - WARM_S) < 1e-9


def test_an_expansion_towards_a_graph_and_the_one_that_captures_it_are_not_counted_either() -> None:
    clock = ManualClock()
    mean_s = learnt(Cold(clock, met=4, captured=5), clock)
    assert mean_s is not None and abs(mean_s - WARM_S) < 1e-9

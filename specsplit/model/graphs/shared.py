"""Captured forwards that several ranks run together: all of them capture the same ones in the same order, and replay the same one.

NCCL asks for both: launching a graph with a captured collective is itself a collective of all ranks that were there when it was captured,
and each of them has to launch what came of that same capture ("Using NCCL with CUDA Graphs" in NCCL's user guide).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import torch

from specsplit.errors import RankLost
from specsplit.model.graphs.capturer import Captured, Capturer, Results
from specsplit.model.graphs.graphs import Graph, Graphs, Layers, OnLaunch, unwatched
from specsplit.model.pages.batch import Row
from specsplit.model.tensors.tracebacks import forget_variables
from specsplit.ranks.demand import Demand
from specsplit.ranks.mesh import Numbers
from specsplit.records import Eager, GraphStatistics

_SMALLER: Final = "cuda_graphs = off does without; lower cuda_graph_tokens and cuda_graph_rows make them smaller"


class Together(Protocol):
    """How one rank keeps step with the others: those that share a model's MLPs, or that it is split over."""

    def assemble(self, numbers: Sequence[int] = ()) -> Sequence[Numbers]:
        """Wait until every rank has come here, however long loading takes it -> everybody's numbers, by rank. Raises RankLost."""
        ...

    def turn(self, rows: Sequence[int]) -> AbstractContextManager[None]:
        """Run an eager forward on every rank, with `rows` of them by rank. Raises RankLost."""
        ...

    def synchronize(self) -> None:
        """Wait for the device. Raises RankLost."""
        ...

    def or_leave(self) -> AbstractContextManager[None]:
        """Run the block; an error in it ends the group. Raises RankLost."""
        ...

    def before_parting(self, work: Callable[[], object]) -> None:
        """Have `work` called before this rank parts from the others."""
        ...


class SharedCapturer:
    """Captures work that exchanges tensors with other ranks (a Capturer): all ranks capture it, or none does."""

    def __init__(self, capturer: Capturer, together: Together) -> None:
        """`capturer` is the one that records on this device."""
        self._capturer: Final = capturer
        self._together: Final = together
        self._new: Final[list[Captured]] = []
        """What this rank has captured, until every rank has said whether it could; nothing else holds it."""
        together.before_parting(self._new.clear)

    def capture(self, work: Callable[[], Results]) -> Captured:
        """Record `work` on every rank or on none. Raises RuntimeError if any rank cannot record it, and RankLost.

        The first call of `work` is not recorded, and the devices of the other ranks take part in it. A rank where it fails ends the group.
        """
        trial, failed = _Trial(work, self._together), None
        try:
            self._new.append(self._capturer.capture(trial))
        except Exception as error:
            forget_variables(error)
            with self._together.or_leave():
                if not trial.over and isinstance(error, torch.OutOfMemoryError):
                    raise torch.OutOfMemoryError(f"capturing CUDA graphs: {error} ({_SMALLER})") from error
                if not trial.over or not isinstance(error, RuntimeError):
                    raise
            failed = error
        failures = self._together.assemble([int(failed is not None)])
        failing = [rank for rank, (failure,) in enumerate(failures) if failure]
        captured = None if failing else next(iter(self._new), None)
        self._new.clear()
        if captured is None:
            raise RuntimeError(
                f"rank {' and '.join(map(str, failing))} of {len(failures)} cannot record it"
            ) from failed
        return captured

    @property
    def nbytes(self) -> int:
        return self._capturer.nbytes


class _Trial:
    """Work, and whether its first call is over on the device too."""

    def __init__(self, work: Callable[[], Results], together: Together) -> None:
        self._work: Final = work
        self._together: Final = together
        self.over = False

    def __call__(self) -> Results:
        """Call `work`. Raises whatever it raises, and RankLost."""
        results = self._work()
        if not self.over:
            self._together.synchronize()  # whatever asks for the device next waits without an end
            self.over = True
        return results


class SharedGraphs:
    """The captured forwards of one rank. All ranks agree on the one that a turn replays; an idle rank replays it too, on padding alone."""

    def __init__(self, graphs: Graphs, together: Together) -> None:
        """`graphs` must have a SharedCapturer."""
        self._graphs: Final = graphs
        self._together: Final = together
        self._due: Graph | None = None
        """The graph that this turn has yet to replay; None: the turn is eager, or has replayed it, or there is no turn."""
        self._refused = False
        """True if the reason why the rows of this turn have no graph is counted already."""
        together.before_parting(graphs.drop)

    @property
    def statistics(self) -> GraphStatistics:
        return self._graphs.statistics

    def demand(self, rows: Sequence[Row], layers: Layers) -> Demand:
        """What the rows of this rank need of a graph in the next turn."""
        demand = self._graphs.demand(rows, layers)
        self._refused = demand.eager
        return demand

    @contextmanager
    def turn(self, rows: Sequence[int], demand: Demand) -> Iterator[None]:
        """Run one forward on every rank, `rows` of them by rank: in a graph, if one meets the demand that they make together, else eagerly.

        Raises RankLost. All ranks have captured the same graphs.
        """
        graph = None
        if any(rows) and not demand.eager:
            with self._together.or_leave():
                graph = self._graphs.ready(demand)
            self._refused = graph is None
        if graph is None:
            with self._together.turn(rows):
                yield
            return
        self._due = graph
        try:
            yield
        except RankLost:
            raise
        except BaseException:
            self._catch_up()
            raise
        self._catch_up()
        self._together.synchronize()

    def run(self, rows: Sequence[Row], layers: Layers = frozenset(), on_launch: OnLaunch = unwatched) -> Results | None:
        """Run rows (at least one) in the graph of this turn -> the results of `Graphs.run`; None if the turn is eager. Raises RankLost."""
        graph = self._due
        if graph is None:
            if not self._refused:
                self._graphs.refuse(Eager.GROUP)
            return None
        self._graphs.load(graph, rows)
        on_launch()
        return self._replay(graph)

    def _catch_up(self) -> None:
        """Replay on padding alone the graph that the other ranks wait for, if the rows of this rank have not replayed it."""
        if self._due is not None:
            with self._together.or_leave():
                self._graphs.load(self._due, ())
            self._replay(self._due)

    def _replay(self, graph: Graph) -> Results:
        self._due = None
        with self._together.or_leave():
            return self._graphs.replay(graph)

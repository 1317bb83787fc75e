"""The captured forwards of one runner."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Protocol

import torch

from specsplit.model.attention.interface import ForwardBatch
from specsplit.model.graphs.capturer import Captured, Capturer, Results
from specsplit.model.graphs.static import Form, Inputs, StaticAttention, StaticInputs, StaticOutputs
from specsplit.model.pages.batch import Row
from specsplit.model.pages.buckets import Bucket, Buckets
from specsplit.model.tensors.upload import Halves
from specsplit.ranks.demand import EAGER, Demand
from specsplit.records import Eager, GraphStatistics

_log = logging.getLogger(__name__)
Layers = frozenset[int]
Wrap = Callable[[StaticAttention, Buckets], StaticAttention]
"""Makes of how captured forwards attend what they also go by."""
OnLaunch = Callable[[], object]
"""Called when a forward is planned and what it reads is on its way to the device, just before its first kernel."""
MOST_MISSED: Final = 16
"""Forwards that run in a larger graph than they need before theirs is captured between two of them: that takes about what these lose."""


def unwatched() -> None:
    """Do nothing when a forward is launched (an OnLaunch)."""


class Program(Protocol):
    """What is captured: a forward of a model. It asks the device for no value, and allocates what it likes."""

    def __call__(self, inputs: Inputs, forward_batch: ForwardBatch, layers: Layers) -> Results:
        """Results by name, each with up to T rows; of `layers` the hidden states too, by number. Other memory that it reads stays put."""
        ...


@dataclass(slots=True, eq=False)
class Graph:
    """One captured forward."""

    bucket: Bucket
    form: Form
    captured: Captured | None
    """None: it was given up, whoever still holds this."""


class Graphs:
    """Captures a program for every bucket and form, and runs rows through it. Used by one thread at a time, that of its runner."""

    def __init__(
        self,
        program: Program,
        inputs: StaticInputs,
        attention: StaticAttention,
        buckets: Buckets,
        capturer: Capturer,
        layers: Layers = frozenset(),
    ) -> None:
        """`layers`: whose hidden states are among the results of every graph. Forwards that want others are run eagerly."""
        self._program: Final = program
        self._inputs: Final = inputs
        self._attention: Final = attention
        self._buckets: Final = buckets
        self._capturer: Final = capturer
        self._outputs: Final = StaticOutputs()
        self._halves: Final = Halves(inputs.device)
        self._layers: Final = layers
        self._graphs: dict[tuple[Bucket, Form], Graph] = {}
        self._missing: dict[tuple[Bucket, Form], int] = {}
        """What is still to be captured, the largest first, and how often each has been missed."""
        self._replayed = 0
        self._eager: Counter[Eager] = Counter()

    @property
    def statistics(self) -> GraphStatistics:
        """What has become of forwards so far. Any thread may ask."""
        captured = len(self._graphs)
        return GraphStatistics(captured, captured and self._capturer.nbytes, self._replayed, dict(self._eager))

    def capture(self, *, lazily: bool = False) -> None:
        """Capture all buckets in all forms, largest first. Raises whatever cannot be captured; then there are no graphs at all.

        `lazily`: only the largest bucket, in which smaller forwards run until their own is captured: by `capture_next`, while nothing else
        is to be done, or when it has been missed often.
        """
        self._missing = dict.fromkeys(product(self._buckets, self._attention.forms), 0)
        first = next(iter(self._buckets))
        try:
            for bucket, form in list(self._missing):
                if bucket == first or not lazily:
                    self._take(bucket, form)
        except RuntimeError:
            self.drop()
            raise

    def anew(self, wrap: Wrap, capturer: Capturer | None = None) -> Graphs:
        """Give all graphs up, and make others of the program, of which none is captured yet; what was counted is counted on.

        `wrap`: makes of how these attend how those do. `capturer`: in the place of this one.
        """
        self.drop()
        made = Graphs(
            self._program,
            self._inputs,
            wrap(self._attention, self._buckets),
            self._buckets,
            capturer or self._capturer,
            self._layers,
        )
        made._replayed, made._eager = self._replayed, self._eager
        return made

    def capture_next(self) -> bool:
        """Capture the largest that is missing. False: none is. If it fails, no more is captured, and the log says so."""
        if not self._missing:
            return False
        self._try(*next(iter(self._missing)))
        return True

    def capture_for(self, rows: Sequence[Row]) -> None:
        """Capture what rows (at least one) like these are to be run in, if that is missing, as `capture_next` does."""
        found = self._buckets.fit(sum(row.num_tokens for row in rows), len(rows))
        if found is None:
            return
        for form in self._attention.fitting(rows):
            if (found, form) in self._missing:
                self._try(found, form)

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], layers: Layers = frozenset(), on_launch: OnLaunch = unwatched) -> Results | None:
        """Run rows (at least one), and store their KV -> results, padding behind them, to be read before the next forward.
        None: there is no graph for them, nothing has been done, and they are to be run eagerly.
        """
        demand = self.demand(rows, layers)
        graph = None if demand.eager else self.ready(demand)
        if graph is None:
            return None
        self.load(graph, rows)
        on_launch()
        return self.replay(graph)

    def demand(self, rows: Sequence[Row], layers: Layers) -> Demand:
        """What these rows need of a graph. EAGER, which is counted: there is none for them."""
        if not rows:
            return Demand()
        if not self._graphs:
            return self.refuse(Eager.FAILED)
        if not layers <= self._layers:
            return self._lack(layers)
        tokens, count = sum(row.num_tokens for row in rows), len(rows)
        if self._buckets.fit(tokens, count) is None:
            return self.refuse(Eager.SIZE)
        fitting = self._attention.fitting(rows)
        if not fitting:
            return self.refuse(Eager.LAYOUT)
        forms = sum(1 << number for number, form in enumerate(self._attention.forms) if form in fitting)
        return Demand(tokens, count, forms)

    def refuse(self, why: Eager) -> Demand:
        """Count a forward that is run eagerly."""
        self._eager[why] += 1
        return EAGER

    def ready(self, demand: Demand) -> Graph | None:
        """The least graph that meets a demand, which is not eager. None: all have been given up.

        Where the least that would is not captured yet, it is a larger one, but for what has been missed often, which is captured now.
        """
        form = self._attention.forms[demand.form]
        holding = [(bucket, form) for bucket in self._buckets.holding(demand.tokens, demand.rows)]
        assert holding, "the largest bucket has room for as many tokens as any, and for as many rows"
        if holding[0] in self._missing:
            self._missing[holding[0]] += 1
            if self._missing[holding[0]] > MOST_MISSED:
                self._try(*holding[0])
        graph = next((found for key in holding if (found := self._graphs.get(key)) is not None), None)
        if graph is None:
            self.refuse(Eager.FAILED)
        return graph

    @torch.inference_mode()
    def load(self, graph: Graph, rows: Sequence[Row]) -> None:
        """Copy rows that a graph holds, or none, to where it reads them, and padding behind them."""
        self._load(rows, graph.bucket, graph.form)

    @torch.inference_mode()
    def replay(self, graph: Graph) -> Results:
        """Run a graph on what was loaded last -> its results, padding behind them, to be read before the next forward.

        Raises RuntimeError if it was given up.
        """
        captured = graph.captured
        if captured is None:
            raise RuntimeError("captured forwards have been given up")
        captured.replay()
        self._replayed += 1
        return captured.results

    def drop(self) -> None:
        """Give up all graphs, so that nothing holds what they use of others. Any thread may call it."""
        graphs, self._graphs, self._missing = self._graphs, {}, {}
        for graph in graphs.values():
            graph.captured = None

    def _lack(self, layers: Layers) -> Demand:
        """Refuse a forward that wants hidden states which no graph leaves; the first time the log says so."""
        if not self._eager[Eager.LAYERS]:
            _log.warning(
                "a forward for a head that reads the hidden states of layers %s is run eagerly, which is slower, and so will be others: "
                "CUDA graphs leave those of layers %s; name all of them in cuda_graph_layers",
                *(",".join(map(str, sorted(each))) or "none" for each in (layers, self._layers)),
            )
        return self.refuse(Eager.LAYERS)

    def _try(self, bucket: Bucket, form: Form) -> None:
        try:
            self._take(bucket, form)
        except RuntimeError as error:
            captured, self._missing = len(self._graphs), {}
            _log.warning(
                "CUDA graphs of %d kinds are captured, and no more, so that smaller forwards run in larger ones: that of %d tokens cannot "
                "be (if for want of memory, set kv_tokens, kv_share, cuda_graph_tokens or cuda_graph_rows lower): %s",
                captured,
                bucket.tokens,
                error,
            )

    def _take(self, bucket: Bucket, form: Form) -> None:
        """Capture one that is missing. Says so once all of its number of tokens are there."""
        self._graphs[bucket, form] = self._capture(bucket, form)
        del self._missing[bucket, form]
        if not any(other.tokens == bucket.tokens for other, _ in self._missing):
            done, nbytes = len(self._graphs), self._capturer.nbytes
            total, text = done + len(self._missing), "captured forwards of %d tokens: %d of %d graphs, %.0f MiB"
            _log.info(text, bucket.tokens, done, total, nbytes / 2**20)

    @torch.inference_mode()
    def _capture(self, bucket: Bucket, form: Form) -> Graph:
        inputs, layers = self._inputs.of(bucket), self._layers
        forward_batch: ForwardBatch | None = None

        def work() -> Results:
            nonlocal forward_batch
            if (
                forward_batch is None
            ):  # the first call is not recorded, and what fails in it fails as the capturer has it
                forward_batch = self._attention.forward(bucket, form, (inputs.write_slots, inputs.window_write_slots))
                for _ in range(2):  # once for each half
                    self._load((), bucket, form)
            return self._outputs.keep(self._program(inputs, forward_batch, layers))

        return Graph(bucket, form, self._capturer.capture(work))

    def _load(self, rows: Sequence[Row], bucket: Bucket, form: Form) -> None:
        padded, half = self._inputs.padded(rows, bucket), self._halves.take()
        self._inputs.load(padded, bucket, half)
        self._attention.plan(padded, bucket, form, half)
        self._halves.sent()

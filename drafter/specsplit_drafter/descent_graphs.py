"""Captured descents: one graph for all levels, by the shape of what it reads.

Contexts, frontiers and noise are padded, so that there are few shapes. Sessions are not: a graph is for so many. One that is new is
captured when it comes for the second time.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from specsplit.model.graphs import Captured, Capturer, Results
from specsplit.records import Eager, GraphStatistics
from specsplit_drafter.descent import Descent, Drawn
from specsplit_drafter.device_ranking import DeviceRanking, Ranked
from specsplit_drafter.draft_model import DraftModel
from specsplit_drafter.static_copy import copy_of, shape_of, write

_log = logging.getLogger(__name__)

MOST_GRAPHS: Final = 64
"""Kept at once, beside shapes that have come once."""
_LEAST: Final = 16


def fitting(length: int) -> int:
    """Pad a length to a power of two, 16 at least; 0 and 1 are as they are."""
    return length if length < 2 else max(_LEAST, 1 << (length - 1).bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    inputs: Descent
    """What it reads."""
    drawn: list[Drawn]
    """What it writes."""
    captured: Captured


class DescentGraphs:
    """Draws descents of one model, by graphs where it has them. Used by one thread at a time, that of the model."""

    def __init__(self, model: DraftModel, capturer: Capturer) -> None:
        self._model = model
        self._capturer = capturer
        self._graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()
        """None: the shape has come once, or could not be captured."""
        self._failed = False
        self._replayed = 0
        self._eager: Counter[Eager] = Counter()

    @property
    def statistics(self) -> GraphStatistics:
        """What has become of descents so far. Any thread may ask."""
        captured = sum(graph is not None for graph in list(self._graphs.values()))
        return GraphStatistics(captured, self._capturer.nbytes, self._replayed, dict(self._eager))

    @torch.inference_mode()
    def draw(self, descent: Descent) -> list[Drawn]:
        """Draw all levels. What is drawn is to be read before the next call."""
        descent = replace(descent, ranking=_padded(descent.ranking))
        biased = descent.ranking.rows.bias is not None
        graph = None if biased else self._graph(descent)
        if graph is None:
            self._eager[Eager.SIZE if biased else Eager.FAILED if self._failed else Eager.FIRST] += 1
            return descent.draw(self._model)
        write(descent, graph.inputs)
        graph.captured.replay()
        self._replayed += 1
        return graph.drawn

    def _graph(self, descent: Descent) -> _Graph | None:
        shape = shape_of(descent)
        known = shape in self._graphs
        if known and self._graphs[shape] is None and not self._failed:
            self._graphs[shape] = self._captured(descent)
        self._graphs.setdefault(shape, None)
        self._graphs.move_to_end(shape)
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return self._graphs[shape]

    def _captured(self, descent: Descent) -> _Graph | None:
        try:
            return self._capture(descent)
        except RuntimeError:
            _log.exception("new descents are run eagerly from now on: one could not be captured")
            self._failed = True
            return None

    def _capture(self, descent: Descent) -> _Graph:
        inputs: Descent = copy_of(descent)
        drawn: list[Drawn] = []

        def work() -> Results:
            drawn[:] = inputs.draw(self._model)
            return _results(drawn)

        captured = self._capturer.capture(work)
        return _Graph(inputs, _drawn(captured.results, len(drawn)), captured)


def _padded(ranking: DeviceRanking) -> DeviceRanking:
    rows = len(ranking.noise)
    return replace(ranking, noise=pad(ranking.noise, (0, 0, 0, fitting(rows) - rows)))


def _results(drawn: list[Drawn]) -> dict[Hashable, Tensor]:
    """Name all tensors of all levels."""
    results: dict[Hashable, Tensor] = {}
    for number, level in enumerate(drawn):
        own = {"parents": level.parents, "tokens": level.tokens, "scores": level.scores}
        ranked = {field.name: getattr(level.children, field.name) for field in fields(level.children)}
        results |= {(number, name): tensor for name, tensor in own.items()}
        results |= {(number, "children", name): tensor for name, tensor in ranked.items()}
    return results


def _drawn(results: Results, levels: int) -> list[Drawn]:
    """Make levels of their tensors by name."""
    return [
        Drawn(
            results[number, "parents"],
            results[number, "tokens"],
            results[number, "scores"],
            Ranked(*(results[number, "children", field.name] for field in fields(Ranked))),
        )
        for number in range(levels)
    ]

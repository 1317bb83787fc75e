"""Captured descents: one graph for all levels, by the shape of what it reads.

Contexts, frontiers and noise are padded, so that there are few shapes. Sessions are not: a graph is for so many. Those of one session
below its root are captured beforehand (`rehearsal.py`). Another is captured when it comes for the second time, as long as there is room
(`graph_cache.py`).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from specsplit.model.graphs import Captured, Capturer, Results
from specsplit.records import Eager, GraphStatistics
from specsplit_drafter.descent.descent import Descent, DeviceLevel
from specsplit_drafter.descent.device_ranking import DeviceRanking, Ranked
from specsplit_drafter.descent.graph_cache import GraphCache
from specsplit_drafter.drafts.draft_model import DraftModel

_log = logging.getLogger(__name__)

_LEAST: Final = 16


def padded_length(length: int) -> int:
    """Pad a length to a power of two, 16 at least; 0 and 1 stay."""
    return length if length < 2 else max(_LEAST, 1 << (length - 1).bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    inputs: Descent
    """What it reads."""
    drawn: list[DeviceLevel]
    """What it writes."""
    captured: Captured


class DescentGraphs:
    """Draws descents of one model, with captured graphs where there are any. Used by one thread at a time, that of the model."""

    def __init__(self, model: DraftModel, capturer: Capturer) -> None:
        self._model = model
        self._capturer = capturer
        self._graphs: GraphCache[_Graph] = GraphCache()
        self._expected: deque[Callable[[], Descent | None]] = deque()
        self._failed = False
        self._replayed = 0
        self._eager: Counter[Eager] = Counter()

    @property
    def statistics(self) -> GraphStatistics:
        """How many descents were replayed or run eagerly, and why. Any thread may ask."""
        return GraphStatistics(len(self._graphs), self._capturer.nbytes, self._replayed, dict(self._eager))

    def expect(self, descents: Iterable[Callable[[], Descent | None]]) -> None:
        """Be told of descents like which others will come, the likeliest first; None for one that there is no room for now."""
        self._expected.extend(descents)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Capture one that is expected, which takes as long as many descents. False: there is none."""
        if self._failed or not self._expected:
            return False
        if (descent := self._expected.popleft()()) is not None:
            descent = replace(descent, ranking=_padded(descent.ranking))
            if (shape := shape_of(descent)) not in self._graphs:
                self._captured(shape, descent)
        return True

    @torch.inference_mode()
    def draw(self, descent: Descent) -> list[DeviceLevel]:
        """Draw all levels. The result is to be read before the next call."""
        descent = replace(descent, ranking=_padded(descent.ranking))
        graph = Eager.BIAS if descent.ranking.rows.bias is not None else self._graph(descent)
        if isinstance(graph, Eager):
            self._eager[graph] += 1
            return descent.draw(self._model)
        copy_into(descent, graph.inputs)
        graph.captured.replay()
        self._replayed += 1
        return graph.drawn

    def _graph(self, descent: Descent) -> _Graph | Eager:
        """Find or capture the graph of a descent; or return why it has none."""
        shape = shape_of(descent)
        graph = self._graphs.find(shape)
        if graph is not None:
            return graph
        if self._failed:
            return Eager.FAILED
        return self._graphs.why_eager(shape) or self._captured(shape, descent)

    def _captured(self, shape: Hashable, descent: Descent) -> _Graph | Eager:
        try:
            graph = self._capture(descent)
        except RuntimeError:
            _log.exception("new descents are run eagerly from now on: one could not be captured")
            self._failed = True
            return Eager.FAILED
        self._graphs.keep(shape, graph)
        return graph

    def _capture(self, descent: Descent) -> _Graph:
        inputs: Descent = copy_of(descent)
        drawn: list[DeviceLevel] = []

        def work() -> Results:
            drawn[:] = inputs.draw(self._model)
            return _results(drawn)

        captured = self._capturer.capture(work)
        return _Graph(inputs, _drawn(captured.results, len(drawn)), captured)


def _padded(ranking: DeviceRanking) -> DeviceRanking:
    rows = len(ranking.noise)
    return replace(ranking, noise=pad(ranking.noise, (0, 0, 0, padded_length(rows) - rows)))


def _results(drawn: list[DeviceLevel]) -> dict[Hashable, Tensor]:
    """Name all tensors of all levels."""
    results: dict[Hashable, Tensor] = {}
    for number, level in enumerate(drawn):
        own = {"parents": level.parents, "tokens": level.tokens, "scores": level.scores}
        ranked = {field.name: getattr(level.children, field.name) for field in fields(level.children)}
        results |= {(number, name): tensor for name, tensor in own.items()}
        results |= {(number, "children", name): tensor for name, tensor in ranked.items()}
    return results


def _drawn(results: Results, levels: int) -> list[DeviceLevel]:
    """Make levels of their tensors by name."""
    return [
        DeviceLevel(
            results[number, "parents"],
            results[number, "tokens"],
            results[number, "scores"],
            Ranked(*(results[number, "children", field.name] for field in fields(Ranked))),
        )
        for number in range(levels)
    ]


def tensors_of(value: object) -> Iterator[Tensor]:
    """List all tensors of a dataclass of tensors and such dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


def shape_of(value: object) -> Hashable:
    """Describe all of such a value but the numbers in its tensors and lists: one can be copied into another of the same shape."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if is_dataclass(value):
        return type(value), tuple(shape_of(getattr(value, field.name)) for field in fields(value))
    return len(value) if isinstance(value, Sequence) else value


def copy_of(value: Any) -> Any:
    """Copy such a value, its tensors too."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: copy_of(getattr(value, field.name)) for field in fields(value)})
    return value


def copy_into(value: object, into: object) -> None:
    """Copy a value into the tensors of one of the same shape, without waiting for the device."""
    for target, source in zip(tensors_of(into), tensors_of(value), strict=True):
        target.copy_(source, non_blocking=True)

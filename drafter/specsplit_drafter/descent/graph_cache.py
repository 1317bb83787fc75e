"""A bounded cache of captured descents by shape, and of the shapes that may be captured next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from specsplit.records import Eager

MOST_GRAPHS: Final = 64
MOST_UNCAPTURED: Final = 256
"""Shapes without a graph that are remembered."""
UNUSED_AFTER: Final = 4096
"""Descents without use after which a graph may be evicted: capturing one takes as long as many descents."""

G = TypeVar("G")


@dataclass(slots=True, eq=False)
class _Entry(Generic[G]):
    graph: G
    used: int
    """The number of the latest descent that it was used for."""


class GraphCache(Generic[G]):
    """Graphs by shape. A shape is captured when it comes for the second time, if there is room.

    A full cache evicts only a graph that was not used for long. The next descent of the shape that was missing then is captured.
    """

    def __init__(
        self, most_graphs: int = MOST_GRAPHS, most_uncaptured: int = MOST_UNCAPTURED, unused_after: int = UNUSED_AFTER
    ) -> None:
        self._most_graphs: Final = most_graphs
        self._most_uncaptured: Final = most_uncaptured
        self._unused_after: Final = unused_after
        self._entries: OrderedDict[Hashable, _Entry[G]] = OrderedDict()
        """The latest used last."""
        self._uncaptured: OrderedDict[Hashable, None] = OrderedDict()
        """Shapes without a graph, the latest to come last."""
        self._num_lookups = 0

    def __len__(self) -> int:
        """Count the graphs."""
        return len(self._entries)

    def __contains__(self, shape: Hashable) -> bool:
        """Tell whether there is one of a shape. It is not used by that."""
        return shape in self._entries

    def find(self, shape: Hashable) -> G | None:
        """Look up the graph for a descent; None: there is none."""
        self._num_lookups += 1
        entry = self._entries.get(shape)
        if entry is None:
            return None
        entry.used = self._num_lookups
        self._entries.move_to_end(shape)
        return entry.graph

    def why_eager(self, shape: Hashable) -> Eager | None:
        """Give the reason why a shape without a graph runs eagerly now; None: it is to be captured.

        FIRST if its next descent is to be captured, and FULL if that is not to be expected, so that costs are learnt from this one.
        """
        known, full = shape in self._uncaptured, len(self._entries) >= self._most_graphs
        if known and not full:
            return None
        if full and known:
            full = not self._evict()
        self._uncaptured[shape] = None
        self._uncaptured.move_to_end(shape)
        if len(self._uncaptured) > self._most_uncaptured:
            self._uncaptured.popitem(last=False)
            full = True
        return Eager.FULL if full else Eager.FIRST

    def keep(self, shape: Hashable, graph: G) -> None:
        """Add the graph of a shape that was to be captured."""
        self._uncaptured.pop(shape, None)
        self._entries[shape] = _Entry(graph, self._num_lookups)

    def _evict(self) -> bool:
        """Evict the least recently used graph, if its last use was long ago; return whether it was."""
        shape, entry = next(iter(self._entries.items()))
        if self._num_lookups - entry.used < self._unused_after:
            return False
        del self._entries[shape]
        return True

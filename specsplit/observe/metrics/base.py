"""What the metrics of every service have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specsplit.observe import metric_table as table
from specsplit.observe.instruments import Instruments
from specsplit.observe.metric import Service
from specsplit.records import Eager, GraphStatistics


class Metrics:
    """The instruments of one process, and who brings them up to date before they are read."""

    def __init__(self, service: Service, *, on: bool, fixed: Mapping[str, Sequence[str]] | None = None) -> None:
        self.on = on
        """False: nobody will read them."""
        self.instruments = Instruments(service, fixed)
        self._watchers: list[Callable[[], None]] = []

    def tasks(self, count: int) -> None:
        """Show how many tasks of the event loop are not over."""
        self.instruments.gauge(table.TASKS).set(count)

    def watch_graphs(self, read: Callable[[], GraphStatistics]) -> None:
        """Have `read` called on the event loop, before every scrape, to look up what has become of a member's forwards."""
        made = self.instruments
        graphs, nbytes = made.gauge(table.GRAPHS), made.gauge(table.GRAPH_BYTES)
        replayed = made.counter(table.GRAPH_FORWARDS)
        eager = {reason: made.counter(table.EAGER_FORWARDS, reason.value) for reason in Eager}

        def look() -> None:
            now = read()
            graphs.set(now.captured)
            nbytes.set(now.nbytes)
            replayed.stand_at(now.replayed)
            for reason, counter in eager.items():
                counter.stand_at(now.eager.get(reason, 0))

        self._watchers.append(look)

    def refresh(self) -> None:
        """Read gauges, and counts that others keep: these are looked up at every scrape. On the event loop."""
        for watcher in self._watchers:
            watcher()

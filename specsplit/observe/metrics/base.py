"""What the metrics of every service have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specsplit.observe.instruments import Instruments
from specsplit.observe.metric import Service


class Metrics:
    """The instruments of one process, and who brings them up to date before they are read."""

    def __init__(self, service: Service, *, on: bool, fixed: Mapping[str, Sequence[str]] | None = None) -> None:
        self.on = on
        """False: nobody will read them."""
        self.instruments = Instruments(service, fixed)
        self._watchers: list[Callable[[], None]] = []

    def refresh(self) -> None:
        """Read what is not told but looked up: gauges, and counts that others keep. On the event loop."""
        for watcher in self._watchers:
            watcher()

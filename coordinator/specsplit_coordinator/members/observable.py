"""The observer pattern: subscribers are called back after every change. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Observable:
    """Something that others want to hear the changes of."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []
        self.changes = 0
        """How often it has changed."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change, until the function that is returned is called."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def notify(self) -> None:
        """Count a change, and call every subscriber."""
        self.changes += 1
        for callback in [*self._subscribers]:
            callback()

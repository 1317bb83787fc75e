"""What others watch: they are called back when it changes. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Watchable:
    """Something that changes now and then."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []
        self.changes = 0
        """How often it has changed."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change; what is returned ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def changed(self) -> None:
        """Tell whoever watches that there is something new."""
        self.changes += 1
        for callback in [*self._watchers]:
            callback()

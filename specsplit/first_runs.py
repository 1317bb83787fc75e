"""Which work runs for the first time, and is therefore slow for reasons that do not come back."""

from __future__ import annotations

from collections.abc import Iterable


class FirstRuns:
    """Tells the first run of a shape from later ones: kernels are compiled, tuned and given memory within it, for any run of that shape."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def is_first(self, *sizes: int) -> bool:
        """Whether nothing of this shape was asked about before. Sizes up to the same power of two are one."""
        first = not self.has(*sizes)
        self.add(*sizes)
        return first

    def has(self, *sizes: int) -> bool:
        """Whether something of this shape has been run."""
        return _shape(sizes) in self._known

    def add(self, *sizes: int) -> None:
        """Count a shape as run."""
        self._known.add(_shape(sizes))


def _shape(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple((max(size, 1) - 1).bit_length() for size in sizes)

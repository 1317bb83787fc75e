"""Which work runs for the first time, and is therefore slow for reasons that do not come back."""

from __future__ import annotations


class FirstRuns:
    """Tells the first run of a shape from later ones: kernels are compiled, tuned and given memory within it, for any run of that shape."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def is_first(self, *sizes: int) -> bool:
        """Whether nothing of this shape was asked about before. Sizes up to the same power of two are one."""
        shape = tuple((max(size, 1) - 1).bit_length() for size in sizes)
        first = shape not in self._known
        self._known.add(shape)
        return first

"""A set to draw from. Pure: chance is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")


class Urn(Generic[T]):
    """Distinct items, each of which is as likely to be drawn as any other. One is put in or taken out in O(1), and k are drawn in O(k)."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._at: dict[T, int] = {}
        """Where each item stands in the list."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._at

    def hold(self, item: T, *, held: bool) -> None:
        """Put an item in, or take it out, unless that is so already."""
        if held == (item in self._at):
            return
        if held:
            self._at[item] = len(self._items)
            self._items.append(item)
        else:
            self._take(item)

    def draw(self, count: int, chance: Random) -> list[T]:
        """Draw `count` different items, or all where there are no more; they stay in the urn."""
        if count >= len(self._items):
            return [*self._items]
        return chance.sample(self._items, count)

    def _take(self, item: T) -> None:
        """Take an item out; the last one takes its place in the list."""
        place, last = self._at.pop(item), self._items.pop()
        if last is not item:
            self._items[place] = last
            self._at[last] = place

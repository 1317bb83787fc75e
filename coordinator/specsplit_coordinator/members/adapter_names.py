"""What names of adapters stand for. Verifiers may have different ones of a name while they are updated one after the other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from specsplit.values import Adapter


class AdapterNames:
    """A name stands for the adapter to which a verifier was updated last, and until one was, for that with which the first came."""

    def __init__(self) -> None:
        self._named: dict[str, Adapter] = {}

    def joined(self, adapters: Iterable[Adapter], others: Collection[Adapter]) -> None:
        """A verifier has come with these. `others`: what those have that were there."""
        self._named = _by_name(adapters) | self._among(others)

    def updated(self, before: Collection[Adapter], adapters: Iterable[Adapter], there: Collection[Adapter]) -> None:
        """A verifier that had those `before` has these now. `there`: what all have now."""
        self._named = self._among(there) | _by_name(each for each in adapters if each not in before)

    def among(self, there: Collection[Adapter]) -> tuple[Adapter, ...]:
        """One adapter for each name of those that are there, by name."""
        return tuple(each for _, each in sorted(self._among(there).items()))

    def _among(self, there: Collection[Adapter]) -> dict[str, Adapter]:
        named = _by_name(there)
        return named | {each.name: each for each in there if self._named.get(each.name) == each}


def _by_name(adapters: Iterable[Adapter]) -> dict[str, Adapter]:
    return {each.name: each for each in adapters}

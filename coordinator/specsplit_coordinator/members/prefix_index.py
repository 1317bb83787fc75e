"""Which verifiers have the KV of a text's first pages, by what they have reported. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from specsplit_coordinator.members.member_state import MemberState


class PrefixIndex:
    """Verifiers by the marks of the pages that they have; see `specsplit.prefix`. Looking one up does not depend on how many there are."""

    def __init__(self) -> None:
        self._holders: dict[int, list[MemberState]] = {}
        """By mark. A list, since most pages are held by few, and a cluster has many pages."""

    def update(self, verifier: MemberState, before: Sequence[int], now: Sequence[int]) -> None:
        """Note which pages a verifier has now, which had those of `before`."""
        if before == now:
            return
        had, has = frozenset(before), frozenset(now)
        for mark in had - has:
            self._forget(mark, verifier)
        for mark in has - had:
            self._holders.setdefault(mark, []).append(verifier)

    def draw(self, marks: Sequence[int], count: int, chance: Random) -> list[MemberState]:
        """Draw up to `count` of the verifiers that have most of a text whose first pages have these marks; none if none has any."""
        for mark in reversed(marks):
            if (holders := self._holders.get(mark)) is not None:
                return [*holders] if count >= len(holders) else chance.sample(holders, count)
        return []

    def _forget(self, mark: int, verifier: MemberState) -> None:
        holders = self._holders[mark]
        holders.remove(verifier)
        if not holders:
            del self._holders[mark]

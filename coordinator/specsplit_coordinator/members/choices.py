"""Verifiers that a session may be placed on, of all and of those that have its adapter. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from specsplit.values import Adapter
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.urn import Urn


class Standing(NamedTuple):
    """What of the choices one verifier is among."""

    open: bool = False
    with_room: bool = False
    at_home: bool = False


OUT: Final = Standing()


class Choices:
    """Some verifiers to choose from."""

    def __init__(self) -> None:
        self.open: Urn[MemberState] = Urn()
        """Verifiers that take sessions, full ones included."""
        self.with_room: Urn[MemberState] = Urn()
        """Verifiers that take sessions and have a free place."""
        self.at_home: Urn[MemberState] = Urn()
        """Verifiers with a free place whose home this coordinator is."""

    def hold(self, verifier: MemberState, standing: Standing) -> None:
        """Put a verifier where it belongs now."""
        self.open.hold(verifier, held=standing.open)
        self.with_room.hold(verifier, held=standing.with_room)
        self.at_home.hold(verifier, held=standing.at_home)


NONE: Final = Choices()


class ChoicesByAdapter:
    """All verifiers to choose from, and those among them that have each adapter."""

    def __init__(self) -> None:
        self.all = Choices()
        self._having: dict[Adapter, Choices] = {}
        """Verifiers that take sessions, by each adapter that they have."""

    def having(self, adapter: Adapter | None) -> Choices:
        """The verifiers that have this adapter; None: all of them."""
        return self.all if adapter is None else self._having.get(adapter, NONE)

    def hold(self, verifier: MemberState, standing: Standing) -> None:
        """Put a verifier where it belongs now, in O(adapters)."""
        self.all.hold(verifier, standing)
        for adapter in verifier.adapters:
            choices = self._having.setdefault(adapter, Choices())
            choices.hold(verifier, standing)
            if not choices.open:
                del self._having[adapter]

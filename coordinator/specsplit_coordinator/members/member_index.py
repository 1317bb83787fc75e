"""The members of a cluster as they are asked for: by role, by group, and as a placement does. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from specsplit.values import Adapter, Vocabulary
from specsplit_coordinator.members.drafter_index import DrafterIndex
from specsplit_coordinator.members.group import Group
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.verifier_index import VerifierIndex


class Roles(NamedTuple):
    """Members by role, in order of joining, draining ones included."""

    verifiers: tuple[MemberState, ...]
    drafters: tuple[MemberState, ...]


class MemberIndex:
    """The members that are there. The registry tells it whoever comes, goes, drains or reports; a member itself what is placed on it."""

    def __init__(self, target: Vocabulary) -> None:
        self.verifiers = VerifierIndex()
        self.drafters = DrafterIndex(target)
        self._there: dict[MemberState, int] = {}
        """In order of joining, each with the number of coordinators that it has said it is joined to."""
        self._joined: Counter[int] = Counter()
        """How many members have said that they are joined to so many coordinators."""
        self._ranks: dict[Group, set[MemberState]] = {}
        """The ranks of each group that are there."""
        self._roles: Roles | None = None
        """The members by role; None: someone has come or gone since they were listed."""

    @property
    def roles(self) -> Roles:
        """The members by role; listed again only after someone has come or gone."""
        if self._roles is None:
            verifiers = tuple(member for member in self._there if member.is_verifier)
            self._roles = Roles(verifiers, tuple(member for member in self._there if not member.is_verifier))
        return self._roles

    @property
    def coordinators(self) -> int:
        """The most coordinators that a member has said it is joined to; 0 if none has said anything."""
        return max((number for number, members in self._joined.items() if members), default=0)

    def enter(self, member: MemberState) -> None:
        """Add a member."""
        self._roles, self._there[member] = None, member.report.coordinators
        self._joined[member.report.coordinators] += 1
        if member.group is not None:
            self._ranks.setdefault(member.group, set()).add(member)
        member.watch(self.update)
        self.update_group(member)

    def leave(self, member: MemberState) -> None:
        """Remove a member, for a while or for good. A second call does nothing."""
        self._roles, joined = None, self._there.pop(member, None)
        if joined is not None:
            self._joined[joined] -= 1
        ranks = self._ranks_of(member)
        if member.group is not None and member in ranks:
            self._ranks[member.group].discard(member)
            if not self._ranks[member.group]:
                del self._ranks[member.group]
        self.update(member)
        self.update_group(member)

    def update(self, member: MemberState) -> None:
        """Note how a member fares now."""
        index = self.verifiers if member.is_verifier else self.drafters
        index.update(member, present=member in self._there)
        if self._there.get(member, joined := member.report.coordinators) != joined:
            self._joined.update({self._there[member]: -1, joined: 1})
            self._there[member] = joined

    def adopt(self, verifier: MemberState, adapters: tuple[Adapter, ...]) -> None:
        """The target of a verifier that is there has these adapters from now on."""
        self.verifiers.update(verifier, present=False)
        verifier.adopt(adapters)
        self.update(verifier)

    def update_group(self, member: MemberState) -> None:
        """Note how a member fares, and the other ranks of its group: one that comes, goes or drains opens or closes all of them."""
        for each in self._ranks_of(member):
            self.update(each)

    def _ranks_of(self, member: MemberState) -> Iterable[MemberState]:
        return (member,) if member.group is None else self._ranks.get(member.group, ())

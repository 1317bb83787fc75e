"""The members of the cluster, and how each of them fares. Pure: the time is that of its clock, and subscribers are called back."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.clock import Clock
from specsplit.errors import InvalidRequest
from specsplit.membership import AdaptersReport, Heartbeat, Member, Register, WaveReport
from specsplit.values import ModelInfo, Vocabulary
from specsplit_coordinator.members.breaker import Breaker
from specsplit_coordinator.members.compatibility import check_vocabulary
from specsplit_coordinator.members.groups import Groups
from specsplit_coordinator.members.member_index import MemberIndex
from specsplit_coordinator.members.member_state import Absence, MemberState
from specsplit_coordinator.members.observable import Observable
from specsplit_coordinator.members.served import Served

DRAFTER_COOL_DOWN_S = 5.0
"""How long a drafter that a verifier has just lost is the last choice for it."""


class Registry(Observable):
    """The members of one cluster, whose verifiers all serve the vocabulary of the coordinator's tokenizer.

    Subscribers are notified whenever a member comes, goes or drains.
    """

    def __init__(self, vocabulary: Vocabulary, clock: Clock, lost_after_s: float) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self.clock = clock
        """The clock of everything that is about members."""
        self.lost_after_s = lost_after_s
        """A member that is silent for longer is lost."""
        self._members: dict[str, MemberState] = {}
        self._away: dict[str, MemberState] = {}
        """Verifiers whose Join streams have ended less than `lost_after_s` ago, by member id: their sessions may still run."""
        self._groups = Groups(clock, lost_after_s)
        self.index = MemberIndex(vocabulary)
        self.served = Served()
        """What verifiers serve that are there, or away."""
        self.heartbeats = 0
        """Counts the heartbeats of verifiers."""
        self.on_gone: list[Callable[[MemberState], None]] = []
        """Called with every member that leaves or is lost."""

    def register(self, who: Register) -> MemberState:
        """Add a member. A verifier that was away for a moment and registers as before gets its state back, with its sessions.

        Raises InvalidRequest for a name or rank that is taken, Incompatible for a verifier with another vocabulary.
        """
        taken = self._members.get(who.member_id)
        if taken is not None:
            problem = f"{who.member_id!r} is already in the cluster, at {taken.who.address}; choose another name"
            raise InvalidRequest("register.member_id", problem)
        member = self._members[who.member_id] = self._returning(who) or self._admit(who)
        self.index.enter(member)
        if (namesake := self._away.get(who.member_id)) is not None:
            self.remove(namesake, "another has its name now")
        self.notify()
        return member

    def _admit(self, who: Register) -> MemberState:
        if isinstance(who.role, ModelInfo) and who.role not in self.served:
            check_vocabulary(who.member_id, who.role, self._vocabulary, self.verifiers)
        group = None if who.group is None else self._groups.join(who.group)
        if isinstance(who.role, ModelInfo):
            self.served.joined(who.role)
        return MemberState(who, self.clock.now(), Breaker(self.clock), group=group)

    def _returning(self, who: Register) -> MemberState | None:
        """Take back the state of a verifier that was away; None if there is none, or it has registered differently."""
        member = self._away.get(who.member_id)
        if member is None or member.who != who:
            return None
        del self._away[who.member_id]
        member.absence, member.last_seen_at = None, self.clock.now()
        return member

    def on_heartbeat(self, member: MemberState, report: Heartbeat) -> None:
        """Take in the heartbeat of a member."""
        member.last_seen_at, before = self.clock.now(), member.weights_version
        member.update(report)
        self.index.update(member)
        if member.weights_version != before:
            self.notify()  # rosters tell it
        self.heartbeats += member.is_verifier
        if member.cooling_down or report.lost_drafters:
            member.cool_down(report.lost_drafters, member.last_seen_at + DRAFTER_COOL_DOWN_S)

    def on_adapters(self, member: MemberState, report: AdaptersReport) -> None:
        """Take in which adapters a verifier has now. What another has under the same name may be older, until it is updated too.

        Raises InvalidRequest if the member is no verifier.
        """
        member.last_seen_at = self.clock.now()
        if not member.is_verifier:
            raise InvalidRequest("adapters", f"are a verifier's, and {member.member_id} is none")
        if member.lost_because is None:  # otherwise the report was on its way when the verifier was taken for lost
            before = member.who.role
            self.index.adopt(member, report.adapters)
            assert isinstance(before, ModelInfo) and isinstance(member.who.role, ModelInfo), "it is a verifier"
            self.served.updated(before, member.who.role)
            self.notify()

    def on_wave_report(self, member: MemberState, report: WaveReport) -> None:
        """Take in the report of a rank. Raises InvalidRequest if the member is not one."""
        member.last_seen_at = self.clock.now()
        if member.group is None or member.who.group is None:
            raise InvalidRequest("wave", f"is of a rank, and {member.member_id} is registered as one that is alone")
        if member.lost_because is None:  # otherwise the report was on its way when the rank was taken for lost
            member.group.on_report(member.who.group.rank, report)

    def drain(self, member: MemberState) -> None:
        """Note that a member drains."""
        if member.lost_because is not None:  # the report was on its way when the member was taken for lost
            return
        member.last_seen_at = self.clock.now()
        member.draining = True
        if member.group is not None:
            member.group.drain()
        self.index.update_group(member)
        self.notify()

    def on_stream_ended(self, member: MemberState, why: str) -> None:
        """Note that the Join stream of a member has ended. A verifier is only away then, since the calls to it may go on; it is removed
        later, by `sweep`. A drafter, a member that drains, and a rank are removed at once. A second call does nothing.
        """
        if not member.is_verifier or member.leaving or member.group is not None:
            self.remove(member, why)
        elif not member.absent:
            self._away[member.member_id] = self._members.pop(member.member_id)
            self.index.leave(member)
            member.absence, member.last_seen_at = Absence(why, for_good=False), self.clock.now()
            self.notify()

    def remove(self, member: MemberState, why: str) -> None:
        """Remove a member for good. A second call does nothing."""
        if member.lost_because is not None:
            return
        del (self._away if member.absent else self._members)[member.member_id]
        member.absence = Absence(why, for_good=True)
        if member.who.group is not None:
            self._groups.lose(member.who.group)
        self.index.leave(member)
        if isinstance(member.who.role, ModelInfo):
            self.served.left(member.who.role)
        for on_lost in [*member.on_lost]:
            on_lost()
        for callback in self.on_gone:
            callback(member)
        self.notify()

    def sweep(self, late_s: float = 0.0) -> tuple[MemberState, ...]:
        """Remove and return the members that have been silent, or away, for too long.

        `late_s` is by how much this call is late. That time does not count as silence: the process was busy, and whatever members sent
        waited in its sockets.
        """
        now = self.clock.now()
        known = (*self._members.values(), *self._away.values())
        for member in known:
            member.last_seen_at = min(now, member.last_seen_at + late_s)
        silent = tuple(member for member in known if now - member.last_seen_at > self.lost_after_s)
        for member in silent:
            self.remove(
                member, member.absence.why if member.absence else f"it was silent for {now - member.last_seen_at:.1f} s"
            )
        self._groups.check()
        return silent

    @property
    def verifiers(self) -> tuple[MemberState, ...]:
        """Every verifier, draining ones included, in order of joining."""
        return self.index.roles.verifiers

    @property
    def known_verifiers(self) -> tuple[MemberState, ...]:
        """Every verifier, including those that are away and may come back."""
        return (*self.verifiers, *self._away.values())

    @property
    def drafters(self) -> tuple[MemberState, ...]:
        """Every drafter, draining ones included, in order of joining."""
        return self.index.roles.drafters

    @property
    def members(self) -> tuple[Member, ...]:
        """Descriptions of all members as of now."""
        now = self.clock.now()
        return tuple(member.describe(now) for member in self._members.values())

    @property
    def coordinators(self) -> int:
        """Coordinators that share the members, this one among them: the most that a member has said it is joined to."""
        return max(1, self.index.coordinators, *(member.report.coordinators for member in self._away.values()))

    @property
    def awaited(self) -> bool:
        """True if a verifier is away that may come back."""
        return bool(self._away)

    def model(self, adapter: str = "") -> ModelInfo:
        """What serves requests for this adapter, of the verifiers that are there or away.

        Raises Unavailable if there is no verifier, InvalidRequest for an adapter that none has.
        """
        return self.served.model(adapter)

    @property
    def usable_drafters(self) -> tuple[MemberState, ...]:
        """The drafters that verifiers may use, in order of joining."""
        return tuple(member for member in self.drafters if member in self.index.drafters)

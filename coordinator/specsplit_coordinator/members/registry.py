"""Who is in the cluster, and how each member fares. Pure: time is the clock's, and whoever cares is called back."""

from __future__ import annotations

from collections.abc import Callable

from specsplit.clock import Clock
from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import Heartbeat, Member, Register, WaveReport
from specsplit.values import DrafterInfo, ModelInfo, Vocabulary
from specsplit_coordinator.members.breaker import Breaker
from specsplit_coordinator.members.fit import check_vocabulary, fitting_info
from specsplit_coordinator.members.groups import Groups
from specsplit_coordinator.members.member_state import Absence, MemberState
from specsplit_coordinator.members.observable import Observable

DRAFTER_COOL_DOWN_S = 5.0
"""How long a drafter that a verifier has just lost is the last choice for it."""


class Registry(Observable):
    """The members of one cluster, whose verifiers all serve the vocabulary of the coordinator's tokenizer.

    It changes whenever somebody comes, goes or drains.
    """

    def __init__(self, vocabulary: Vocabulary, clock: Clock, lost_after_s: float) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self.clock = clock
        """What tells the time here."""
        self.lost_after_s = lost_after_s
        """For how long a member may be silent."""
        self._members: dict[str, MemberState] = {}
        self._away: dict[str, MemberState] = {}
        """Verifiers whose streams have ended, by member id, for as long as a member may be silent: their sessions may go on."""
        self._groups = Groups(clock, lost_after_s)
        self.heartbeats = 0
        """Heartbeats of verifiers so far."""
        self.on_gone: list[Callable[[MemberState], None]] = []
        """Called with every member that has left or was lost."""

    def register(self, who: Register) -> MemberState:
        """Let a member in; one that was away a moment ago, and is still what it was, gets its state back, with the sessions on it.

        Raises InvalidRequest for a name or rank that is taken, Incompatible for a verifier with another vocabulary.
        """
        taken = self._members.get(who.member_id)
        if taken is not None:
            problem = f"{who.member_id!r} is already in the cluster, at {taken.who.address}; choose another name"
            raise InvalidRequest("register.member_id", problem)
        if isinstance(who.role, ModelInfo):
            check_vocabulary(who.member_id, who.role, self._vocabulary, self.verifiers)
        member = self._members[who.member_id] = self._back(who) or self._admit(who)
        if (namesake := self._away.get(who.member_id)) is not None:
            self.remove(namesake, "another has its name now")
        self.notify()
        return member

    def _admit(self, who: Register) -> MemberState:
        group = None if who.group is None else self._groups.join(who.group)
        return MemberState(who, self.clock.now(), Breaker(self.clock), group=group)

    def _back(self, who: Register) -> MemberState | None:
        """The state of one that was away; None if there is none, or it is another's."""
        member = self._away.get(who.member_id)
        if member is None or member.who != who:
            return None
        del self._away[who.member_id]
        member.absence, member.heard_at = None, self.clock.now()
        return member

    def hear(self, member: MemberState, report: Heartbeat) -> None:
        """Note how a member fares."""
        member.heard_at = self.clock.now()
        member.update(report)
        self.heartbeats += member.is_verifier
        if member.cooling_down or report.lost_drafters:
            member.cool_down(report.lost_drafters, member.heard_at + DRAFTER_COOL_DOWN_S)

    def hear_wave(self, member: MemberState, report: WaveReport) -> None:
        """Note where a rank of a group stands."""
        member.heard_at = self.clock.now()
        if member.group is None or member.who.group is None:
            raise InvalidRequest("wave", f"is of a rank, and {member.member_id} is registered as one that is alone")
        if member.lost_because is None:  # else it was on its way when the rank was taken for lost
            member.group.heard(member.who.group.rank, report)

    def drain(self, member: MemberState) -> None:
        """Note that a member takes no new sessions."""
        if member.lost_because is not None:  # it was on its way when the member was taken for lost
            return
        member.heard_at = self.clock.now()
        member.draining = True
        if member.group is not None:
            member.group.drain()
        self.notify()

    def part(self, member: MemberState, why: str) -> None:
        """The stream of a member has ended, which says nothing of the calls to a verifier: until it has been silent for too long it may
        come back to its sessions. Who drains, a drafter, and a rank, whose group has to learn of it, is let go. A second call does nothing.
        """
        if not member.is_verifier or member.leaving or member.group is not None:
            self.remove(member, why)
        elif not member.absent:
            self._away[member.member_id] = self._members.pop(member.member_id)
            member.absence, member.heard_at = Absence(why, for_good=False), self.clock.now()
            self.notify()

    def remove(self, member: MemberState, why: str) -> None:
        """Let a member go. A second call does nothing."""
        if member.lost_because is not None:
            return
        del (self._away if member.absent else self._members)[member.member_id]
        member.absence = Absence(why, for_good=True)
        if member.who.group is not None:
            self._groups.lose(member.who.group)
        for callback in [*member.on_lost]:
            callback()
        for told in self.on_gone:
            told(member)
        self.notify()

    def sweep(self, late_s: float = 0.0) -> tuple[MemberState, ...]:
        """Remove and return the members that have been silent, or away, for too long.

        `late_s` is how much later than it meant to this process came to look: in that time it could not have heard anybody, since
        what they sent waited in its sockets. So nobody's silence counts it.
        """
        now = self.clock.now()
        known = (*self._members.values(), *self._away.values())
        for member in known:
            member.heard_at = min(now, member.heard_at + late_s)
        silent = tuple(member for member in known if now - member.heard_at > self.lost_after_s)
        for member in silent:
            self.remove(
                member, member.absence.why if member.absence else f"it was silent for {now - member.heard_at:.1f} s"
            )
        self._groups.look()
        return silent

    @property
    def verifiers(self) -> tuple[MemberState, ...]:
        """Every verifier, draining ones included, in order of joining."""
        return tuple(member for member in self._members.values() if isinstance(member.who.role, ModelInfo))

    @property
    def known_verifiers(self) -> tuple[MemberState, ...]:
        """Every verifier, those included that are away and may be back in a moment."""
        return (*self.verifiers, *self._away.values())

    @property
    def drafters(self) -> tuple[MemberState, ...]:
        """Every drafter, draining ones included, in order of joining."""
        return tuple(member for member in self._members.values() if isinstance(member.who.role, DrafterInfo))

    @property
    def members(self) -> tuple[Member, ...]:
        """Everyone, as seen now."""
        now = self.clock.now()
        return tuple(member.describe(now) for member in self._members.values())

    @property
    def awaited(self) -> bool:
        """True if a verifier is away that may be back in a moment."""
        return bool(self._away)

    def model(self) -> ModelInfo:
        """What the verifiers serve; of several, the one with the shortest context. Raises Unavailable if there is none."""
        models = [member.who.role for member in self.known_verifiers if isinstance(member.who.role, ModelInfo)]
        if not models:
            raise Unavailable(
                "no verifier has joined the cluster; start one, or try again when it has loaded its model"
            )
        return min(models, key=lambda model: model.max_context)

    @property
    def usable_drafters(self) -> tuple[MemberState, ...]:
        """The drafters that verifiers may use, in order of joining."""
        return tuple(
            member for member in self.drafters if fitting_info(member, self._vocabulary) and not member.closed_because
        )

"""Who is in the cluster, and how each member fares. Pure: time is the clock's, and whoever cares is called back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from specsplit.clock import Clock
from specsplit.errors import Incompatible, InvalidRequest, Unavailable
from specsplit.membership import GroupRank, HandOver, Heartbeat, Member, Register, WaveReport
from specsplit.values import (
    Control,
    DrafterInfo,
    DrafterKind,
    Endpoint,
    Load,
    ModelInfo,
    Plan,
    SpeculationReport,
    Vocabulary,
)
from specsplit_coordinator.breaker import Breaker
from specsplit_coordinator.groups import PATIENCE, Group

KIND_ORDER = (
    DrafterKind.EAGLE3,
    DrafterKind.MULTI_LAYER_EAGLE,
    DrafterKind.EAGLE,
    DrafterKind.STANDALONE,
    DrafterKind.NGRAM,
)
"""Drafter kinds, best first."""
DRAFTER_COOL_DOWN_S = 5.0
"""How long a drafter that a verifier has just lost is the last choice for it."""


@dataclass(frozen=True)
class Absence:
    """Why a member is not there."""

    why: str
    for_good: bool
    """False: a verifier that may come back to its sessions."""


@dataclass(eq=False)
class Seat:
    """One live member. `running` is the coordinator's own count of sessions placed on it, ahead of what the member reports."""

    who: Register
    heard_at: float
    breaker: Breaker
    report: Heartbeat = field(default_factory=Heartbeat)
    """What it said last."""
    draining: bool = False
    running: int = 0
    absence: Absence | None = None
    """Why it is not there; None: it is."""
    on_lost: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    """Called once, when the member is lost or leaves."""
    cooling_down: dict[str, float] = field(default_factory=dict[str, float])
    """Drafters that this verifier has just lost, by member id, and until when they are the last choice for it."""
    promised: list[int] = field(default_factory=list[int])
    """Pages that sessions want which were placed on a verifier, as far as what it said last does not count them; the latest last."""
    hand_overs: deque[HandOver] = field(default_factory=deque[HandOver])
    """What a verifier has yet to be told of sessions that are to go on with another drafter."""
    group: Group | None = None
    """The group that it is a rank of; None: it is alone."""

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Marks of first pages that a verifier has, as it said last."""
        return self.report.prefixes

    @property
    def load(self) -> Load:
        """How busy it is, as it said last."""
        return self.report.load

    @property
    def plan(self) -> Plan | None:
        """In force on a verifier where a request does not say otherwise, as it said last."""
        return self.report.plan

    @property
    def drafted(self) -> int:
        """Tokens of a session in one step at most where a request does not say otherwise; 0 until the verifier has told its plan."""
        bound = None if self.speculation is None else self.speculation.max_draft_tokens
        return bound or (0 if self.plan is None else self.plan.num_draft_tokens)

    @property
    def speculation(self) -> SpeculationReport | None:
        """How a verifier speculates, and what drafters brought it, as it said last."""
        return self.report.speculation

    @property
    def member_id(self) -> str:
        """Its name in the cluster."""
        return self.who.member_id

    @property
    def is_verifier(self) -> bool:
        """True for a verifier, False for a drafter."""
        return isinstance(self.who.role, ModelInfo)

    @property
    def wave(self) -> WaveReport | None:
        """Where a rank of a group stands, as it said last."""
        return None if self.group is None or self.who.group is None else self.group.said(self.who.group.rank)

    @property
    def promised_pages(self) -> int:
        """What is not free any more of the pages that it said are."""
        return sum(self.promised)

    def heard(self, report: Heartbeat) -> None:
        """Take in what it says. Sessions that it does not count yet were placed while that was on its way: the latest."""
        self.report = report
        counted = len(self.promised) - max(0, self.running - report.load.sessions)
        del self.promised[: max(0, counted)]

    def knows(self, control: Control) -> bool:
        """True if this verifier can be told to use the controller, or the bound, if there is one to use."""
        return control.wanted is None or control.wanted.value in self.who.controllers

    @property
    def sessions(self) -> int:
        """Sessions on it: the higher of what was placed and what it reports."""
        return max(self.running, self.load.sessions)

    @property
    def busy(self) -> float:
        """Its sessions as a share of those it takes."""
        return self.sessions / self.who.max_sessions

    @property
    def leaving(self) -> bool:
        """True if it drains, or is to: a rank of its group does, and it has not said so yet."""
        return self.draining or (self.group is not None and self.group.leaving)

    @property
    def lost_because(self) -> str | None:
        """Why the member is no longer in the cluster; None while it is, or may come back."""
        return self.absence.why if self.absence is not None and self.absence.for_good else None

    @property
    def gone(self) -> bool:
        """True if it is not there, for a while or for good."""
        return self.absence is not None

    @property
    def closed_because(self) -> str:
        """Why it takes no sessions; empty: it takes some."""
        if self.group is not None:
            return self.group.closed_because
        return f"{self.member_id} is draining" if self.draining else ""

    @property
    def free_places(self) -> int:
        """Sessions that may still be placed on it."""
        return 0 if self.closed_because else max(0, self.who.max_sessions - self.running)

    @property
    def has_room(self) -> bool:
        """True if one more session may be placed on it."""
        return self.free_places > 0


class Registry:
    """The members of one cluster, whose verifiers all serve the vocabulary of the coordinator's tokenizer."""

    def __init__(self, vocabulary: Vocabulary, clock: Clock, lost_after_s: float) -> None:
        self._vocabulary = vocabulary
        self._clock = clock
        self._lost_after_s = lost_after_s
        self._seats: dict[str, Seat] = {}
        self._away: dict[str, Seat] = {}
        """Verifiers whose streams have ended, by member id, for as long as a member may be silent: their sessions may go on."""
        self._watchers: list[Callable[[], None]] = []
        self._groups: dict[str, Group] = {}
        """Those of which a rank is there, or was lately, by group id."""
        self.heard = 0
        """Heartbeats of verifiers so far."""
        self.on_gone: list[Callable[[Seat], None]] = []
        """Called with every member that has left or was lost."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever somebody comes, goes or drains; what is returned ends that."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def register(self, who: Register) -> Seat:
        """Let a member in; one that was away a moment ago, and is still what it was, gets its seat back, with the sessions on it.

        Raises InvalidRequest for a name or rank that is taken, Incompatible for a verifier with another vocabulary.
        """
        taken = self._seats.get(who.member_id)
        if taken is not None:
            problem = f"{who.member_id!r} is already in the cluster, at {taken.who.address}; choose another name"
            raise InvalidRequest("register.member_id", problem)
        if isinstance(who.role, ModelInfo):
            self._require_same_vocabulary(who.member_id, who.role)
        seat = self._seats[who.member_id] = self._back(who) or self._seat(who)
        if (namesake := self._away.get(who.member_id)) is not None:
            self.remove(namesake, "another has its name now")
        self.changed()
        return seat

    def _seat(self, who: Register) -> Seat:
        group = None if who.group is None else self._joined(who.group)
        return Seat(who, self._clock.now(), Breaker(self._clock), group=group)

    def _back(self, who: Register) -> Seat | None:
        """The seat of one that was away; None if there is none, or it is another's."""
        seat = self._away.get(who.member_id)
        if seat is None or seat.who != who:
            return None
        del self._away[who.member_id]
        seat.absence, seat.heard_at = None, self._clock.now()
        return seat

    def _joined(self, who: GroupRank) -> Group:
        group = self._groups.get(who.group_id) or Group(who.size)
        first = group.empty
        group.join(who)
        if first:
            group.since = self._clock.now()
        self._groups[who.group_id] = group
        return group

    def hear(self, seat: Seat, report: Heartbeat) -> None:
        """Note how a member fares."""
        seat.heard_at = self._clock.now()
        seat.heard(report)
        self.heard += seat.is_verifier
        seat.cooling_down = {drafter: until for drafter, until in seat.cooling_down.items() if until > seat.heard_at}
        seat.cooling_down |= dict.fromkeys(report.lost_drafters, seat.heard_at + DRAFTER_COOL_DOWN_S)

    def hear_wave(self, seat: Seat, report: WaveReport) -> None:
        """Note where a rank of a group stands."""
        seat.heard_at = self._clock.now()
        if seat.group is None or seat.who.group is None:
            raise InvalidRequest("wave", f"is of a rank, and {seat.member_id} is registered as one that is alone")
        if seat.lost_because is None:  # else it was on its way when the rank was taken for lost
            seat.group.heard(seat.who.group.rank, report)

    def drain(self, seat: Seat) -> None:
        """Note that a member takes no new sessions."""
        if seat.lost_because is not None:  # it was on its way when the member was taken for lost
            return
        seat.heard_at = self._clock.now()
        seat.draining = True
        if seat.group is not None:
            seat.group.drain()
        self.changed()

    def part(self, seat: Seat, why: str) -> None:
        """The stream of a member has ended, which says nothing of the calls to a verifier: until it has been silent for too long it may
        come back to its sessions. Who drains, a drafter, and a rank, whose group has to learn of it, is let go. A second call does nothing.
        """
        if not seat.is_verifier or seat.leaving or seat.group is not None:
            self.remove(seat, why)
        elif not seat.gone:
            self._away[seat.member_id] = self._seats.pop(seat.member_id)
            seat.absence, seat.heard_at = Absence(why, for_good=False), self._clock.now()
            self.changed()

    def remove(self, seat: Seat, why: str) -> None:
        """Let a member go. A second call does nothing."""
        if seat.lost_because is not None:
            return
        del (self._away if seat.gone else self._seats)[seat.member_id]
        seat.absence = Absence(why, for_good=True)
        if seat.group is not None and seat.who.group is not None:
            seat.group.lose(seat.who.group.rank)
            if seat.group.empty:
                seat.group.since = self._clock.now()
        for callback in [*seat.on_lost]:
            callback()
        for told in self.on_gone:
            told(seat)
        self.changed()

    def sweep(self, late_s: float = 0.0) -> tuple[Seat, ...]:
        """Remove and return the members that have been silent, or away, for too long.

        `late_s` is how much later than it meant to this process came to look: in that time it could not have heard anybody, since
        what they sent waited in its sockets. So nobody's silence counts it.
        """
        now = self._clock.now()
        known = (*self._seats.values(), *self._away.values())
        for seat in known:
            seat.heard_at = min(now, seat.heard_at + late_s)
        silent = tuple(seat for seat in known if now - seat.heard_at > self._lost_after_s)
        for seat in silent:
            self.remove(seat, seat.absence.why if seat.absence else f"it was silent for {now - seat.heard_at:.1f} s")
        self._look_at_groups(now)
        return silent

    def _look_at_groups(self, now: float) -> None:
        """Wake groups that have not been whole for long, and forget those of which no rank has come back."""
        patience_s = PATIENCE * self._lost_after_s
        for group_id, group in [*self._groups.items()]:
            group.look(now, patience_s)
            if group.empty and now - group.since > patience_s:
                del self._groups[group_id]

    @property
    def clock(self) -> Clock:
        """What tells the time here."""
        return self._clock

    @property
    def lost_after_s(self) -> float:
        """For how long a member may be silent."""
        return self._lost_after_s

    @property
    def verifiers(self) -> tuple[Seat, ...]:
        """Every verifier, draining ones included, in order of joining."""
        return tuple(seat for seat in self._seats.values() if isinstance(seat.who.role, ModelInfo))

    @property
    def drafters(self) -> tuple[Seat, ...]:
        """Every drafter, draining ones included, in order of joining."""
        return tuple(seat for seat in self._seats.values() if isinstance(seat.who.role, DrafterInfo))

    @property
    def members(self) -> tuple[Member, ...]:
        """Everyone, as seen now."""
        now = self._clock.now()
        return tuple(
            Member(
                member_id=seat.member_id,
                address=seat.who.address,
                role=seat.who.role,
                max_sessions=seat.who.max_sessions,
                load=seat.load,
                draining=seat.draining,
                silent_ms=round((now - seat.heard_at) * 1000),
                plan=seat.plan,
                speculation=seat.speculation,
                group=seat.who.group,
                wave=seat.wave,
            )
            for seat in self._seats.values()
        )

    def check_known(self, control: Control) -> None:
        """Raise Incompatible, naming it, if a verifier that is there cannot be told to use this controller."""
        for seat in self.verifiers:
            if not seat.knows(control):
                known = ", ".join(seat.who.controllers) or "none"
                raise Incompatible(
                    f"verifier {seat.member_id} runs a build that cannot be told to use {control.wanted} (it knows: {known}); "
                    "update it, or choose a controller that every verifier knows"
                )

    @property
    def awaited(self) -> bool:
        """True if a verifier is away that may be back in a moment."""
        return bool(self._away)

    def model(self) -> ModelInfo:
        """What the verifiers serve; of several, the one with the shortest context. Raises Unavailable if there is none."""
        known = (*self.verifiers, *self._away.values())
        models = [seat.who.role for seat in known if isinstance(seat.who.role, ModelInfo)]
        if not models:
            raise Unavailable(
                "no verifier has joined the cluster; start one, or try again when it has loaded its model"
            )
        return min(models, key=lambda model: model.max_context)

    @property
    def usable_drafters(self) -> tuple[Seat, ...]:
        """The drafters that verifiers may use, in order of joining."""
        return tuple(seat for seat in self.drafters if fitting_info(seat, self._vocabulary) and not seat.closed_because)

    def _require_same_vocabulary(self, member_id: str, model: ModelInfo) -> None:
        mine = f"verifier {member_id} serves {model.model} with {model.vocabulary}"
        if not model.vocabulary.fits(self._vocabulary):
            raise Incompatible(f"vocabulary mismatch: {mine}; the coordinator's tokenizer has {self._vocabulary}")
        for seat in self.verifiers:
            other = seat.who.role
            if isinstance(other, ModelInfo) and not model.vocabulary.fits(other.vocabulary):
                theirs = f"verifier {seat.member_id} serves {other.model} with {other.vocabulary}"
                raise Incompatible(f"vocabulary mismatch in one cluster: {mine}; {theirs}")

    def changed(self) -> None:
        """Tell whoever watches that there is something new."""
        for callback in [*self._watchers]:
            callback()


def endpoint_of(seat: Seat) -> Endpoint:
    role = seat.who.role
    if isinstance(role, DrafterInfo):
        return Endpoint(seat.member_id, seat.who.address, role.features)
    return Endpoint(seat.member_id, seat.who.address)


def kind_of(drafter: Seat) -> DrafterKind:
    """What it proposes with."""
    assert isinstance(drafter.who.role, DrafterInfo), "only drafters have a kind"
    return drafter.who.role.kind


def fitting_info(seat: Seat, target: Vocabulary) -> DrafterInfo | None:
    """What the drafter on `seat` says of itself, if it can draft for `target`."""
    info = seat.who.role
    if not isinstance(info, DrafterInfo) or (info.vocabulary is not None and not info.vocabulary.fits(target)):
        return None
    return info

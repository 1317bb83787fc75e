"""One live member as the coordinator knows it: what it has said of itself, and what is placed on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from specsplit.membership import HandOver, Heartbeat, Member, Register, WaveReport
from specsplit.values import (
    Adapter,
    Control,
    DrafterInfo,
    DrafterKind,
    Endpoint,
    Load,
    ModelInfo,
    Plan,
    SpeculationReport,
)
from specsplit_coordinator.members.breaker import Breaker
from specsplit_coordinator.members.group import Group

KIND_ORDER = (
    DrafterKind.EAGLE3,
    DrafterKind.DFLASH,
    DrafterKind.DSPARK,
    DrafterKind.MULTI_LAYER_EAGLE,
    DrafterKind.EAGLE,
    DrafterKind.STANDALONE,
    DrafterKind.NGRAM,
)
"""Drafter kinds, best first."""


@dataclass(frozen=True)
class Absence:
    """Why a member is not there."""

    why: str
    for_good: bool
    """False: a verifier that may come back to its sessions."""


@dataclass(frozen=True)
class Latest:
    """The member's latest heartbeat."""

    report: Heartbeat = field(default_factory=Heartbeat)
    others: int = 0
    """Sessions in it that are not from here, or were and are over."""

    @cached_property
    def pages(self) -> frozenset[int]:
        """Marks of the first pages of texts whose KV a verifier has."""
        return frozenset(self.report.prefixes)


@dataclass(eq=False, slots=True)
class Placed:
    """The sessions that were placed on a member from here."""

    running: int = 0
    reserved: list[int] = field(default_factory=list[int])
    """KV pages for each session that was placed on a verifier and is not in its latest report yet, in order of placement; 0 for a session
    of a verifier that has not told the size of its pages."""
    on_change: Callable[[], object] = lambda: None
    """Called when `running` has changed."""


@dataclass(eq=False)
class MemberState:
    """One live member."""

    who: Register
    last_seen_at: float
    breaker: Breaker
    latest: Latest = field(default_factory=Latest)
    draining: bool = False
    placed: Placed = field(default_factory=Placed)
    absence: Absence | None = None
    """Why the member is not there; None: it is."""
    on_lost: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    """Called once, when the member is lost or leaves."""
    cooling_down: dict[str, float] = field(default_factory=dict[str, float])
    """Drafters that this verifier has just lost, by member id, each with the time until which it is the last choice for the verifier."""
    hand_overs: deque[HandOver] = field(default_factory=deque[HandOver])
    """Hand-overs of sessions to other drafters that this verifier has not been told of yet."""
    group: Group | None = None
    """The group that the member is a rank of; None: it is alone."""

    def watch(self, callback: Callable[[MemberState], object]) -> None:
        """Call `callback` with it whenever it gets a session, one ends, or its breaker counts another number of failures."""
        self.placed.on_change = self.breaker.on_change = partial(callback, self)

    @property
    def running(self) -> int:
        """The coordinator's own count of sessions placed on it; it is ahead of what the member reports."""
        return self.placed.running

    @running.setter
    def running(self, sessions: int) -> None:
        self.placed.running = sessions
        self.placed.on_change()

    @property
    def report(self) -> Heartbeat:
        """The member's latest heartbeat."""
        return self.latest.report

    @property
    def elsewhere(self) -> int:
        """Sessions that other coordinators have placed on it, as of its latest report; 0 if there are none to do so."""
        return self.latest.others if self.shared else 0

    @property
    def shared(self) -> bool:
        """True if other coordinators place sessions on it too."""
        return self.report.coordinators > 1

    @property
    def at_home(self) -> bool:
        """True if this coordinator should place most of its sessions: it is the only one, or the one that the member calls its home."""
        return self.report.home or not self.shared

    @cached_property
    def adapters(self) -> frozenset[Adapter]:
        """The adapters of a verifier."""
        return frozenset(self.who.role.adapters) if isinstance(self.who.role, ModelInfo) else frozenset()

    def adopt(self, adapters: tuple[Adapter, ...]) -> None:
        """The target of a verifier has these adapters from now on. To be called where no index counts it."""
        role = self.who.role
        assert isinstance(role, ModelInfo), "only verifiers have adapters"
        self.who = replace(self.who, role=replace(role, adapters=adapters))
        vars(self).pop("adapters", None)

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Marks of the first pages of texts whose KV the verifier has, by its latest report."""
        return self.report.prefixes

    @property
    def load(self) -> Load:
        """How busy the member is, by its latest report."""
        return self.report.load

    @property
    def plan(self) -> Plan | None:
        """The default plan in force on a verifier, by its latest report."""
        return self.report.plan

    @property
    def max_draft_tokens(self) -> int:
        """Most tokens of a session in one step, whatever the controller does, unless its request says more; 0 until reported."""
        bound = None if self.speculation is None else self.speculation.max_draft_tokens
        return bound or self.plan_draft_tokens

    @property
    def plan_draft_tokens(self) -> int:
        """Most tokens of a session in one step under the plan in force now; 0 until the plan is reported."""
        return 0 if self.plan is None else self.plan.num_draft_tokens

    @property
    def max_context(self) -> int:
        """Most tokens of one text; 0 for a drafter."""
        return self.who.role.max_context if isinstance(self.who.role, ModelInfo) else 0

    @property
    def looks_up(self) -> bool:
        """True for a verifier that drafts by lookup for sessions that no drafter serves."""
        return isinstance(self.who.role, ModelInfo) and self.who.role.looks_up

    @property
    def speculation(self) -> SpeculationReport | None:
        """How a verifier speculates, and what drafters brought it, by its latest report."""
        return self.report.speculation

    @property
    def member_id(self) -> str:
        return self.who.member_id

    @property
    def is_verifier(self) -> bool:
        """True for a verifier, False for a drafter."""
        return isinstance(self.who.role, ModelInfo)

    @property
    def weights_version(self) -> int:
        """Which weights of its model it has taken since it started, from 2 on; 0: none, so that most heartbeats bring no news of it."""
        return version if (version := self.report.weights_version) > 1 else 0

    @property
    def wave(self) -> WaveReport | None:
        """In which wave this rank of a group is, by its latest report; None for a member that is alone."""
        return None if self.group is None or self.who.group is None else self.group.report_of(self.who.group.rank)

    @property
    def reserved_pages(self) -> int:
        """Pages that the member reported as free, and that are reserved for sessions placed since then."""
        return sum(self.placed.reserved)

    def update(self, report: Heartbeat) -> None:
        """Take in a heartbeat, and drop the reservations of the sessions that it counts.

        The sessions that it does not count are those placed last, while it was on its way.
        """
        self.latest = Latest(report, max(0, report.load.sessions - self.running))
        if reserved := self.placed.reserved:
            counted = len(reserved) - max(0, self.running - report.load.sessions)
            del reserved[: max(0, counted)]

    def cool_down(self, lost: Iterable[str], until: float) -> None:
        """Let the drafters that the verifier has just lost cool down until `until`, and forget those whose time is over."""
        self.cooling_down = {drafter: end for drafter, end in self.cooling_down.items() if end > self.last_seen_at}
        self.cooling_down |= dict.fromkeys(lost, until)

    def knows(self, control: Control) -> bool:
        """True if this verifier has the controller that `control` names, or `control` names none."""
        return control.wanted is None or control.wanted.value in self.who.controllers

    @property
    def sessions(self) -> int:
        """Sessions on the member: those that were placed from here, and what its latest report had beside them."""
        return self.running + self.latest.others

    @property
    def busy(self) -> float:
        """Share of its session places that are taken."""
        return self.sessions / self.who.max_sessions

    @property
    def leaving(self) -> bool:
        """True if the member drains, or is going to because another rank of its group does."""
        return self.draining or (self.group is not None and self.group.leaving)

    @property
    def lost_because(self) -> str | None:
        """Why the member has left the cluster for good; None if it has not."""
        return self.absence.why if self.absence is not None and self.absence.for_good else None

    @property
    def absent(self) -> bool:
        """True if the member is away, for a while or for good."""
        return self.absence is not None

    @property
    def closed_because(self) -> str:
        """Why the member takes no new sessions; empty if it does."""
        if self.group is not None:
            return self.group.closed_because
        return f"{self.member_id} is draining" if self.draining else ""

    @property
    def free_places(self) -> int:
        """Sessions that may still be placed on the member.

        A drafter's own count matters too, since verifiers give it sessions after a loss without asking. Of a verifier that several
        coordinators share, each may always have its part of the places, whatever the others have taken: beyond max_sessions the verifier
        lets sessions wait, in order of arrival, so none of the coordinators keeps the others out.
        """
        if self.closed_because:
            return 0
        if not self.is_verifier:
            return max(0, self.who.max_sessions - self.sessions)
        part = max(1, self.who.max_sessions // max(1, self.report.coordinators))
        return max(0, self.who.max_sessions - self.running - self.elsewhere, part - self.running)

    @property
    def has_free_place(self) -> bool:
        """True if one more session may be placed on the member."""
        return self.free_places > 0

    def describe(self, now: float) -> Member:
        """Make the public description of the member as of `now`, a time of the clock."""
        return Member(
            member_id=self.member_id,
            address=self.who.address,
            role=self.who.role,
            max_sessions=self.who.max_sessions,
            load=self.load,
            draining=self.leaving,
            silent_ms=round((now - self.last_seen_at) * 1000),
            plan=self.plan,
            speculation=self.speculation,
            group=self.who.group,
            wave=self.wave,
            build=self.who.build,
            host=self.who.host,
            weights_version=self.report.weights_version,
        )


def endpoint_of(member: MemberState) -> Endpoint:
    role = member.who.role
    if isinstance(role, DrafterInfo):
        return Endpoint(member.member_id, member.who.address, role.features, member.weights_version)
    return Endpoint(member.member_id, member.who.address)


def kind_of(drafter: MemberState) -> DrafterKind:
    assert isinstance(drafter.who.role, DrafterInfo), "only drafters have a kind"
    return drafter.who.role.kind

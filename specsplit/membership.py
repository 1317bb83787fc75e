"""What members (drafters, verifier ranks) and the coordinator say to each other, and what the coordinator tells others of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from specsplit.errors import InvalidRequest
from specsplit.settings.address import check_dialable
from specsplit.values import (
    Adapter,
    Control,
    DrafterInfo,
    Endpoint,
    Host,
    Load,
    ModelInfo,
    Plan,
    PlanChanges,
    SpeculationReport,
    TraceChanges,
)
from specsplit.values.checks import check_name

Role = ModelInfo | DrafterInfo
"""What a member is: a verifier rank (its target), or a drafter."""
MAX_WAVES = 2**31
"""A group has begun fewer waves than that."""


@dataclass(frozen=True)
class GroupRank:
    """Which rank of which group a member is. Raises InvalidRequest for a rank that the group does not have."""

    group_id: str
    """Drawn by rank 0 when the group starts, so that a group that has started anew is another one."""
    rank: int
    """Number of the rank, from 0."""
    size: int
    """How many ranks there are."""

    def __post_init__(self) -> None:
        if not self.group_id:
            raise InvalidRequest("register.group.group_id", "is empty, expected what rank 0 drew")
        if not 0 <= self.rank < self.size:
            raise InvalidRequest("register.group.rank", f"is {self.rank}, in a group of {self.size} ranks")


@dataclass(frozen=True)
class Register:
    """First report of a member: who it is.

    Raises InvalidRequest for a name that is empty, too long or not printable, an address that nobody can dial, or no room for sessions.
    """

    member_id: str
    """Unique in the cluster."""
    address: str
    """host:port at which others reach it."""
    role: Role
    max_sessions: int
    """Sessions it takes at once, at most."""
    controllers: tuple[str, ...] = ()
    """Names of the controllers that it can be told to use (verifiers only)."""
    group: GroupRank | None = None
    """Which rank of a group it is; None: it is alone."""
    build: str = ""
    """Its version and commit, as `specsplit.build` tells them; empty: not told."""
    host: Host = field(default_factory=Host)
    """Where it computes."""

    def __post_init__(self) -> None:
        if not self.member_id:
            raise InvalidRequest("register.member_id", "is empty, expected a name that is unique in the cluster")
        for field_name, name in self._names():
            check_name(f"register.{field_name}", name)
        check_dialable("register.address", self.address)
        if self.max_sessions < 1:
            raise InvalidRequest("register.max_sessions", f"is {self.max_sessions}, expected at least 1")

    def _names(self) -> Iterator[tuple[str, str]]:
        """Every name in it, with its field."""
        yield "member_id", self.member_id
        yield "build", self.build
        yield ("verifier.model" if isinstance(self.role, ModelInfo) else "drafter.model"), self.role.model
        yield from (("controllers", each) for each in self.controllers)
        if self.group is not None:
            yield "group.group_id", self.group.group_id


@dataclass(frozen=True)
class Heartbeat:
    """Every heartbeat interval: how the member fares."""

    load: Load = field(default_factory=Load)
    lost_drafters: tuple[str, ...] = ()
    """Member ids of drafters it lost since the last heartbeat (verifiers only)."""
    plan: Plan | None = None
    """What it steps under where a request does not say otherwise (verifiers only); None: not told."""
    speculation: SpeculationReport | None = None
    """How it speculates, and what that brought lately (verifiers only); None: not told."""
    prefixes: tuple[int, ...] = ()
    """Marks of pages with which the texts begin that it has (verifiers only), the latest used last; see `specsplit.prefix`."""
    weights_version: int = 0
    """1 for the weights that its model began with, and one more for every update; 0: it has none, or does not tell."""
    coordinators: int = 0
    """Coordinators that it is joined to, the one that is told among them; 0: a member of an older build, which has one."""
    home: bool = False
    """True where the coordinator that is told is the member's home, of those that it is joined to."""


class RankState(StrEnum):
    """What a rank of a group does."""

    BUSY = "busy"
    """The rank steps sessions of its own."""
    IDLE = "idle"
    """The rank has no session, and steps with the others."""
    PARKED = "parked"
    """Neither the rank nor another of its group steps."""


@dataclass(frozen=True)
class WaveReport:
    """Where a rank of a group stands; told at once when it changes, and at every join."""

    number: int = 0
    """The wave that it is in, or was in last; 0: it has been in none."""
    parked: bool = True
    """True if that wave is over for it."""
    wanted: bool = False
    """True if it is parked and has work, so that it wants the next wave."""

    def __post_init__(self) -> None:
        if self.number >= MAX_WAVES:
            raise InvalidRequest("wave.number", f"is {self.number:,}, expected less than {MAX_WAVES:,}")

    def state(self, sessions: int) -> RankState:
        """What the rank does if it has so many sessions."""
        return RankState.PARKED if self.parked else RankState.BUSY if sessions else RankState.IDLE


@dataclass(frozen=True)
class Draining:
    """The member takes no new sessions and leaves when its running ones are done."""


@dataclass(frozen=True)
class AdaptersReport:
    """Which adapters the target of a verifier has now, where these are others than it has said."""

    adapters: tuple[Adapter, ...] = ()
    """All of them; each has another name."""


Report = Register | Heartbeat | Draining | WaveReport | AdaptersReport
"""What a member sends to the coordinator."""


@dataclass(frozen=True)
class Registered:
    """The member is in."""

    heartbeat_interval_ms: int


@dataclass(frozen=True)
class Roster:
    """Every drafter that is alive and fits the verifier's target, best first."""

    drafters: tuple[Endpoint, ...] = ()


@dataclass(frozen=True)
class Drain:
    """Take no new sessions, finish the running ones, leave."""


@dataclass(frozen=True)
class CoordinatorDraining:
    """The coordinator takes no more requests: it is not to be counted among those that place sessions."""


@dataclass(frozen=True)
class HandOver:
    """Some of the sessions that one drafter has are to go on with another."""

    source: str
    """Member id of the drafter that has them."""
    target: Endpoint
    sessions: int
    """How many of them, at most."""
    sampled: bool = False
    """True: sessions whose temperature is above 0; False: greedy ones."""
    other_kind: bool = False
    """True: the other is of another kind, so that only sessions whose callers asked for none may go."""

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise InvalidRequest("hand_over.sessions", f"is {self.sessions}, expected at least 1")


@dataclass(frozen=True)
class PlanOrder:
    """From the next step on the default plan of a verifier is its own with these changes, for running sessions too.

    A field that a session's request fixed stays as the request has it. No changes: back to the verifier's own default.
    """

    changes: PlanChanges = field(default_factory=PlanChanges)
    control: Control = field(default_factory=Control)
    """Who decides what neither a request nor the changes say."""
    ordered_ms: int = 0
    """When the coordinator was told so, in milliseconds since 1970; of what several say the latest holds. 0: it was told nothing."""


@dataclass(frozen=True)
class TracingOrder:
    """From now on trace what the member's own settings say, with these changes. No changes: back to the settings."""

    changes: TraceChanges = field(default_factory=TraceChanges)
    ordered_ms: int = 0
    """When the coordinator was told so, in milliseconds since 1970; of what several say the latest holds. 0: it was told nothing."""


@dataclass(frozen=True)
class StartWave:
    """Every rank of the group is to begin this wave: at once, or when the one before it is over. One that it has begun already is none."""

    number: int

    def __post_init__(self) -> None:
        if not 1 <= self.number < MAX_WAVES:
            raise InvalidRequest("start_wave.number", f"is {self.number:,}, expected 1..{MAX_WAVES - 1:,}")


Directive = Registered | Roster | PlanOrder | TracingOrder | HandOver | StartWave | Drain | CoordinatorDraining
"""To a member. Plan, tracing and wave are told at every join, so that a member need not remember them over a break."""


@dataclass(frozen=True)
class Member:
    """One member, as the coordinator sees it now."""

    member_id: str
    address: str
    role: Role
    max_sessions: int
    load: Load = field(default_factory=Load)
    draining: bool = False
    silent_ms: int = 0
    """Time since its last report."""
    plan: Plan | None = None
    """In force on a verifier where a request does not say otherwise; None for a drafter, and until the verifier has said it."""
    speculation: SpeculationReport | None = None
    """How a verifier speculates, as it said last; None for a drafter, and until then."""
    group: GroupRank | None = None
    """Which rank of a group it is; None: it is alone."""
    wave: WaveReport | None = None
    """Where that rank stands, as it said last; None: it is alone, or has not said."""
    build: str = ""
    """Its version and commit; empty: it is of a build that does not tell."""
    host: Host = field(default_factory=Host)
    """Where it computes, as it registered with."""
    weights_version: int = 0
    """Which weights of its model it has, as it said last; see `Heartbeat`."""


@dataclass(frozen=True)
class Cluster:
    """All members, how many requests wait and run, and what happened to sessions since the coordinator started."""

    members: tuple[Member, ...] = ()
    queued: int = 0
    running: int = 0
    failovers: int = 0
    """How often a session went on with another verifier, or with the same one come back."""
    preemptions: int = 0
    """How often a verifier took the KV pages of a session back."""
    build: str = ""
    """The coordinator's version and commit; empty: it is of a build that does not tell."""
    coordinators: int = 0
    """Coordinators that share the members, this one among them; 0: it is of a build that does not tell."""
    quotas: str = ""
    """What this coordinator allows of clients' quotas, in a sentence; empty: what its settings say."""


@dataclass(frozen=True)
class PlanInForce:
    """The changes of the plan that are in force."""

    members: int
    """Verifiers that are told of them."""
    changes: PlanChanges
    """All that differs from their own defaults."""
    control: Control = field(default_factory=Control)
    """Who is to decide about the rest, where that differs from their own settings."""


@dataclass(frozen=True)
class TracingInForce:
    """The changes of what is traced that are in force."""

    members: int
    """Drafters and verifiers that are told of them; the coordinator obeys too."""
    changes: TraceChanges
    """All that differs from everybody's own settings."""

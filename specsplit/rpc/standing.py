"""What one member says to all of its coordinators: who it is, how it fares, what it lost, and that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from specsplit.clock import Clock
from specsplit.membership import AdaptersReport, Heartbeat, Register, WaveReport
from specsplit.ranks.rank import Rank
from specsplit.rpc.home import home_of
from specsplit.values import Adapter, Load, ModelInfo, Plan, SpeculationReport
from specsplit.wire.limits import MAX_MEMBERS

LOST_S = 5.0
"""For so long the loss of a drafter is news: as long as one cools down at a coordinator."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to ask for what the member reports; None where there is nothing to say."""

    load: Callable[[], Load]
    plan: Callable[[], Plan] | None
    speculation: Callable[[], SpeculationReport] | None
    prefixes: Callable[[], tuple[int, ...]]
    weights_version: Callable[[], int] = int
    adapters: Callable[[], tuple[Adapter, ...]] = tuple
    """Of a verifier's target."""

    def heartbeat(self) -> Heartbeat:
        """How the member fares."""
        plan = None if self.plan is None else self.plan()
        speculation = None if self.speculation is None else self.speculation()
        return Heartbeat(self.load(), (), plan, speculation, self.prefixes(), self.weights_version())


class Standing:
    """Shared by the memberships of one member, so that all coordinators are told the same, and nothing is asked once for each."""

    def __init__(self, register: Register, sources: Sources, rank: Rank | None, clock: Clock) -> None:
        """`rank`: as which it belongs to a group; None: it is alone."""
        self._register = register if rank is None else replace(register, group=rank.group)
        self.draining = False
        self.joined: Sequence[str] = ()
        """The coordinators that it is joined to and that do not drain; if all do, all."""
        self._sources = sources
        self._rank = rank
        self._clock = clock
        self._made = Heartbeat()
        self._made_at: float | None = None
        self._lost: dict[str, float] = {}
        """Drafters that were lost lately, by member id, and when."""

    @property
    def register(self) -> Register:
        """Who it is now."""
        role = self._register.role
        if isinstance(role, ModelInfo) and role.adapters != (adapters := self._sources.adapters()):
            self._register = replace(self._register, role=replace(role, adapters=adapters))
        return self._register

    @property
    def adapters(self) -> AdaptersReport | None:
        """What its target has now; None: it is no verifier."""
        role = self.register.role
        return AdaptersReport(role.adapters) if isinstance(role, ModelInfo) else None

    def renew(self) -> None:
        """What was reported last is no longer so: the next report is made anew for everybody."""
        self._made_at = None

    def heartbeat(self, lost: Sequence[str], interval_s: float, coordinator: str) -> Heartbeat:
        """How the member fares, and which drafters it lost, for a coordinator that is told every `interval_s`.

        The home of the member is told what is true now. Others are told again what was made less than half of that ago: however many there
        are, they cost no more than three reports in an interval.
        """
        now, home = self._clock.now(), coordinator == home_of(self._register.member_id, self.joined)
        if home or self._made_at is None or now - self._made_at >= interval_s / 2:
            self._made, self._made_at = self._sources.heartbeat(), now
        return replace(self._made, lost_drafters=tuple(lost), coordinators=len(self.joined), home=home)

    def wave(self) -> WaveReport | None:
        """Where it stands as a rank of a group."""
        return None if self._rank is None else self._rank.report

    def lose(self, drafter: str) -> None:
        """Note that the drafter with this member id cannot be reached."""
        self._lost[drafter] = self._clock.now()

    def unsent(self, sent: Mapping[str, float]) -> dict[str, float]:
        """The lost drafters of which a call has yet to tell. Each call tells of all: nobody knows which last words of one were heard."""
        now = self._clock.now()
        self._lost = {drafter: at for drafter, at in self._lost.items() if now - at < LOST_S}
        news = (loss for loss in self._lost.items() if sent.get(loss[0]) != loss[1])
        return dict(islice(news, MAX_MEMBERS))

    def remembered(self, sent: Mapping[str, float]) -> dict[str, float]:
        """Of the losses that a call has told of those that are still news."""
        return {drafter: at for drafter, at in sent.items() if drafter in self._lost}

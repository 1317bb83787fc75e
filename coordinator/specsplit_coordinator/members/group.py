"""One rank group: which of its ranks are there, and which of its waves has been started last. Pure.

The coordinator starts a wave for all ranks at once: when a parked rank asks for it, or when a session is placed on a rank of a parked
group. Every rank is told the number of the wave, at every join too. A coordinator that was restarted learns it from the ranks' reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.errors import InvalidRequest
from specsplit.membership import GroupRank, WaveReport
from specsplit_coordinator.members.observable import Observable

FIRST_PATIENCE = 30
"""A group that has yet to be whole is waited for this many times longer: its ranks have met, and join here one by one."""


@dataclass(frozen=True, slots=True)
class Waves:
    """What the coordinator knows of the waves of one group. Each event returns the next value."""

    number: int = 0
    """The last wave that was started here, or that a rank has reported."""
    parked: bool = True
    """True if that wave is known to be over."""
    wanted: bool = False
    """True if the next wave is to be started as soon as it may."""
    broken: bool = False
    """True if a rank is gone, or has not come for long. In the next wave the others learn whether the rank is lost, or just its stream."""

    def reported(self, report: WaveReport) -> Waves:
        """Take in the report of a rank. One about an earlier wave is out of date, and changes nothing."""
        if report.number < self.number:
            return self
        if report.number > self.number:
            return Waves(report.number, report.parked, report.wanted, self.broken)
        return Waves(self.number, self.parked or report.parked, self.wanted or report.wanted, self.broken)

    def placed(self) -> Waves:
        """A session was placed on one of the ranks. In a wave that changes nothing: the rank asks for the next one itself, later."""
        return replace(self, wanted=True) if self.parked else self

    def lost(self, *, leaving: bool) -> Waves:
        """A rank of a whole group is gone, or a rank has not come for long.

        In a group that is `leaving`, ranks without work may leave, so no wave is wanted for that.
        """
        return replace(self, broken=True, wanted=self.wanted or not leaving)

    def started(self, *, whole: bool) -> Waves:
        """Start the next wave, if it is wanted and the group is `whole` or `broken`. Otherwise it waits, since a rank that is missing would
        not be told. In a broken group, a rank that is back is told of the wave, and one that is lost ends the wave and the group.
        """
        broken = self.broken and not whole
        if self.wanted and self.parked and (whole or broken):
            return Waves(self.number + 1, parked=False, broken=broken)
        return self if broken == self.broken else replace(self, broken=broken)


class Group(Observable):
    """One incarnation of a group. Subscribers are notified when a wave is started, and when the group is to end."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self.since = 0.0
        """The latest of: the last time that it was whole, that its first rank came or its last rank went, and that it was woken."""
        self._ranks: dict[int, WaveReport | None] = {}
        """The ranks that are there, and the latest report of each."""
        self._waves = Waves()
        self._was_whole = False
        self.leaving = False
        """True if a rank drains: the others can do nothing without it, so they leave too."""

    @property
    def closed_because(self) -> str:
        """Why no session may be placed on its ranks; empty if all of them are there and none drains."""
        if self.leaving:
            return f"a group of {self._size} ranks is draining"
        missing = [str(rank) for rank in range(self._size) if rank not in self._ranks]
        return f"a group of {self._size} ranks lacks rank {' and '.join(missing)}" if missing else ""

    @property
    def empty(self) -> bool:
        """True if no rank is there."""
        return not self._ranks

    @property
    def wave(self) -> int:
        """The number of the wave that all of its ranks should have begun; 0 if none was started yet."""
        return self._waves.number

    def report_of(self, rank: int) -> WaveReport | None:
        """The latest report of a rank; None if it has not reported."""
        return self._ranks.get(rank)

    def join(self, who: GroupRank) -> None:
        """Add a rank. Raises InvalidRequest if it is there already, or says that the group has another size."""
        if who.size != self._size:
            raise InvalidRequest("register.group.size", f"is {who.size}; another rank of it said {self._size}")
        if who.rank in self._ranks:
            raise InvalidRequest("register.group.rank", f"is {who.rank}, which is in the cluster already")
        self._ranks[who.rank] = None
        self._was_whole |= self._whole
        self._become(self._waves)

    def lose(self, rank: int) -> None:
        """Remove a rank that is lost or has left: the others can do nothing without it, and their sessions are to end."""
        waves = self._waves.lost(leaving=self.leaving) if self._whole else self._waves
        del self._ranks[rank]
        self._become(waves)

    def check(self, now: float, patience_s: float) -> None:
        """Wake the ranks of a group that has not been whole for `patience_s`: in a wave they learn that one of them is lost.

        A group that has yet to be whole gets more time; one that has been in a wave was whole before, if only for an earlier coordinator.
        """
        if not (self._was_whole or self.wave):
            patience_s *= FIRST_PATIENCE
        if self._whole:
            self.since = now
        elif not self.empty and now - self.since > patience_s:
            self.since = now
            self._become(self._waves.lost(leaving=self.leaving))

    def drain(self) -> None:
        """Note that a rank drains, so that the group is to end."""
        self.leaving = True
        self.notify()

    def on_report(self, rank: int, report: WaveReport) -> None:
        """Take in the report of a rank."""
        self._ranks[rank] = report
        self._become(self._waves.reported(report))

    def placed(self) -> None:
        """Note that a session was placed on one of the ranks."""
        self._become(self._waves.placed())

    @property
    def _whole(self) -> bool:
        return len(self._ranks) == self._size

    def _become(self, waves: Waves) -> None:
        before, self._waves = self._waves, waves.started(whole=self._whole)
        if self._waves.number != before.number:
            self.notify()

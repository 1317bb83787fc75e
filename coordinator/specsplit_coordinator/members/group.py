"""One rank group: who of it is there, and which of its waves has been started. Pure.

A wave is started once for all ranks, when one of them is parked and wants it, or when a session is placed on one while the group is parked.
Which wave that was is told to every rank, at every join too. A coordinator that has started anew learns it from what the ranks report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specsplit.errors import InvalidRequest
from specsplit.membership import GroupRank, WaveReport
from specsplit_coordinator.members.observable import Observable

FIRST_PATIENCE = 30
"""How many times as long one is waited for that has yet to be whole: its ranks have met, and come here one by one."""


@dataclass(frozen=True, slots=True)
class Waves:
    """What the coordinator knows of the waves of one group. Each event gives the next value."""

    number: int = 0
    """The last wave that was started, or that a rank said it has begun."""
    parked: bool = True
    """True if that wave is known to be over."""
    wanted: bool = False
    """True if the next one is to be started as soon as it may be."""
    broken: bool = False
    """True if a rank is gone, or has not come for long: in a wave the others learn whether it is lost, or only its stream is."""

    def heard(self, report: WaveReport) -> Waves:
        """Take in where a rank stands. What it says of a wave before the last one is old."""
        if report.number < self.number:
            return self
        if report.number > self.number:
            return Waves(report.number, report.parked, report.wanted, self.broken)
        return Waves(self.number, self.parked or report.parked, self.wanted or report.wanted, self.broken)

    def placed(self) -> Waves:
        """A session was placed on one of the ranks. If the wave is not known to be over, the rank says what it wants when it is."""
        return replace(self, wanted=True) if self.parked else self

    def lost(self, *, leaving: bool) -> Waves:
        """A rank of a whole group is gone, or one has not come for long.

        If the group is `leaving`, those without work may go too, and nobody wakes them.
        """
        return replace(self, broken=True, wanted=self.wanted or not leaving)

    def started(self, *, whole: bool) -> Waves:
        """Start the next wave, if it is wanted and the group is `whole`, or is `broken`: else no rank may begin one of which another never
        hears. One that is back is told of it; one that is lost ends the wave, and the group.
        """
        broken = self.broken and not whole
        if self.wanted and self.parked and (whole or broken):
            return Waves(self.number + 1, parked=False, broken=broken)
        return self if broken == self.broken else replace(self, broken=broken)


class Group(Observable):
    """One incarnation of a group; it changes when a wave is started or it is to end. Of a rank it knows no more than that it is there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self.since = 0.0
        """When it was whole last, its first rank came, its last one went, or it was woken: what was last of these."""
        self._ranks: dict[int, WaveReport | None] = {}
        """The ranks that are there, and what each of them said last."""
        self._waves = Waves()
        self._was_whole = False
        self.leaving = False
        """True if a rank drains: the others can do nothing without it, and leave too."""

    @property
    def closed_because(self) -> str:
        """Why no session may be placed on its ranks; empty: all of them are there, and none drains."""
        if self.leaving:
            return f"a group of {self._size} ranks is draining"
        lacking = [str(rank) for rank in range(self._size) if rank not in self._ranks]
        return f"a group of {self._size} ranks lacks rank {' and '.join(lacking)}" if lacking else ""

    @property
    def empty(self) -> bool:
        """True if no rank is there."""
        return not self._ranks

    @property
    def wave(self) -> int:
        """The wave that all of its ranks should have begun; 0: none yet."""
        return self._waves.number

    def said(self, rank: int) -> WaveReport | None:
        """Where a rank stands, as it said last."""
        return self._ranks.get(rank)

    def join(self, who: GroupRank) -> None:
        """A rank is there. Raises InvalidRequest if it is there already, or takes the group for one of another size."""
        if who.size != self._size:
            raise InvalidRequest("register.group.size", f"is {who.size}; another rank of it said {self._size}")
        if who.rank in self._ranks:
            raise InvalidRequest("register.group.rank", f"is {who.rank}, which is in the cluster already")
        self._ranks[who.rank] = None
        self._was_whole |= self._whole
        self._become(self._waves)

    def lose(self, rank: int) -> None:
        """A rank is lost, or has left: the others can do nothing without it, and what they have is to end."""
        waves = self._waves.lost(leaving=self.leaving) if self._whole else self._waves
        del self._ranks[rank]
        self._become(waves)

    def look(self, now: float, patience_s: float) -> None:
        """Wake the ranks of a group that has not been whole for so long: they meet, and learn that one of them is lost.

        One that has yet to be whole has more time. One that has been in a wave was whole, if only for an earlier coordinator.
        """
        if not (self._was_whole or self.wave):
            patience_s *= FIRST_PATIENCE
        if self._whole:
            self.since = now
        elif not self.empty and now - self.since > patience_s:
            self.since = now
            self._become(self._waves.lost(leaving=self.leaving))

    def drain(self) -> None:
        """A rank drains, and the group ends with it."""
        self.leaving = True
        self.notify()

    def heard(self, rank: int, report: WaveReport) -> None:
        """A rank says where it stands."""
        self._ranks[rank] = report
        self._become(self._waves.heard(report))

    def placed(self) -> None:
        """A session was placed on one of the ranks."""
        self._become(self._waves.placed())

    @property
    def _whole(self) -> bool:
        return len(self._ranks) == self._size

    def _become(self, waves: Waves) -> None:
        before, self._waves = self._waves, waves.started(whole=self._whole)
        if self._waves.number != before.number:
            self.notify()

"""One rank of a group, as its engine sees it: when it takes turns, what it tells the coordinator, and what turns were."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from specsplit.clock import Clock
from specsplit.membership import WaveReport
from specsplit.ranks.lockstep import Agreed, Lockstep
from specsplit.ranks.wave import ENDLESS, Wave
from specsplit.records import TurnCosts

_log = logging.getLogger(__name__)

ASKED_EVERY_S: Final = 0.01
SETTLED: Final = 30
"""How many times in a row a rank that is told to leave has to be found to be needed by none."""


class Rank:
    """Belongs to the engine thread, but for `report`. One that is alone takes no turns, and is never parked."""

    def __init__(self, lockstep: Lockstep, clock: Clock) -> None:
        self.alone = lockstep.alone
        self.group = lockstep.group
        self.on_report: Callable[[], object] = _ignore
        """Called when there is another report, on the engine thread."""
        self.report = WaveReport()
        """Where it stands. Any thread may ask."""
        self.excused: Callable[[], bool] = lambda: True
        """False while the coordinator may not know that this rank leaves; asked by `may_leave`."""
        self._announced = 0
        """The highest wave that the coordinator has announced; the engine thread comes to it later."""
        self._lockstep = lockstep
        self._clock = clock
        self._wave = ENDLESS if self.alone else Wave()
        self._asleep_since: float | None = None
        """When there was work for it while it was parked; None: a step has been made of it."""

    @property
    def parked(self) -> bool:
        """True if it may take no turn."""
        return self._wave.parked

    @property
    def may_leave(self) -> bool:
        """True if it is alone, or its group is parked and no wave is to begin. Any thread may ask."""
        return self.alone or (self.report.parked and self.report.number >= self._announced and self.excused())

    def hears(self, wave: int) -> None:
        """The coordinator has told of a wave, which its engine has still to `start`. Called where that is heard, on the event loop."""
        self._announced = max(self._announced, wave)

    async def unneeded(self, failed: asyncio.Event) -> None:
        """Return once no other rank needs this one, or it has failed. `may_leave` has to hold for a while: a session that was placed on
        another rank just before the coordinator knew is told of by then.
        """
        held = 0
        while not (self.alone or failed.is_set() or held == SETTLED):
            await asyncio.sleep(ASKED_EVERY_S)
            held = held + 1 if self.may_leave else 0

    def start(self, wave: int) -> None:
        """The coordinator has all ranks begin a wave."""
        self._wave = self._wave.start(wave)
        self._tell(wanted=False)

    def rests(self, *, unfinished: bool) -> None:
        """Note that the rank is parked, and waits for something to happen."""
        if self._asleep_since is None or not unfinished:
            self._asleep_since = self._clock.now() if unfinished else None
        self._tell(wanted=unfinished)

    def end_turn(self, started: float) -> tuple[Agreed, TurnCosts] | None:
        """End a turn, whose forward began at `started`, if there was one. None if it is alone."""
        agreed = self._lockstep.agreed
        if agreed is None:
            return None
        wave, woke_s = self._wave.number, None
        if not agreed.idle and self._asleep_since is not None:
            woke_s, self._asleep_since = started - self._asleep_since, None
        self._wave = self._wave.end_turn(unfinished=agreed.unfinished)
        if self._wave.parked or self._wave.number != wave:
            self._tell(wanted=False)
        return agreed, TurnCosts(wave, agreed.rows, self._lockstep.take_waited_s(), woke_s)

    def fail(self, why: str) -> str:
        """This rank cannot go on, and so cannot the group -> a sentence that says so; empty if it is alone. Any thread may call it."""
        lost = self._lockstep.abort(why)
        return "" if self.alone else str(lost)

    def end(self) -> None:
        """Take no more turns. Of a group that is parked nobody waits for this rank; else the others read that it has gone."""
        if self.alone or self.parked:
            self._lockstep.close()
        else:
            self._lockstep.abort("it was told to leave, and its time to wait for the others was over")

    def _tell(self, *, wanted: bool) -> None:
        report = WaveReport(self._wave.number, self._wave.parked, wanted)
        if report != self.report:
            self.report = report
            stands = ("parked, and work is there" if report.wanted else "parked") if report.parked else "begun"
            _log.debug("wave %d: %s", report.number, stands)
            self.on_report()


def _ignore() -> None:
    """Stands for `on_report` where nobody wants to hear of waves."""

"""One rank of a group, as its engine sees it: when it takes turns, what it tells the coordinator, and what turns were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

from specsplit.clock import Clock
from specsplit.membership import WaveReport
from specsplit.observe import fields
from specsplit.records import TurnCosts
from specsplit_verifier.lockstep import Agreed, Lockstep
from specsplit_verifier.wave import ENDLESS, Wave

_log = logging.getLogger(__name__)


class Rank:
    """Belongs to the engine thread, but for `report`. One that is alone takes no turns, and is never parked."""

    def __init__(self, lockstep: Lockstep, clock: Clock, *, parks: bool) -> None:
        """`parks`: there is a coordinator, which starts its waves."""
        self.alone = lockstep.alone
        self.group = lockstep.group
        self.on_report: Callable[[], object] = _ignore
        """Called when there is another report, on the engine thread."""
        self.report = WaveReport()
        """Where it stands. Any thread may ask."""
        self._lockstep = lockstep
        self._clock = clock
        self._wave = Wave() if parks and not self.alone else ENDLESS
        self._asleep_since: float | None = None
        """When there was work for it while it was parked; None: a step has been made of it."""

    @property
    def parked(self) -> bool:
        """True if it may take no turn."""
        return self._wave.parked

    def start(self, wave: int) -> None:
        """The coordinator has all ranks begin a wave."""
        self._wave = self._wave.start(wave)
        self._tell(wanted=False)

    def rests(self, *, unfinished: bool) -> None:
        """It is parked, and waits for something to happen."""
        if self._asleep_since is None or not unfinished:
            self._asleep_since = self._clock.now() if unfinished else None
        self._tell(wanted=unfinished)

    def turned(self, started: float) -> tuple[Agreed, TurnCosts] | None:
        """A turn is over, whose forward began at `started`, if there was one. None if it is alone."""
        agreed = self._lockstep.agreed
        if agreed is None:
            return None
        wave, woke_s = self._wave.number, None
        if not agreed.idle and self._asleep_since is not None:
            woke_s, self._asleep_since = started - self._asleep_since, None
        self._wave = self._wave.turned(unfinished=agreed.unfinished)
        if self._wave.parked or self._wave.number != wave:
            self._tell(wanted=False)
        return agreed, TurnCosts(wave, agreed.rows, self._lockstep.take_waited_s(), woke_s)

    def _tell(self, *, wanted: bool) -> None:
        report = WaveReport(self._wave.number, self._wave.parked, wanted)
        if report != self.report:
            self.report = report
            _log.debug("wave", extra=fields(**asdict(report)))
            self.on_report()


def _ignore() -> None:
    """Stands for `on_report` where nobody wants to hear of waves."""

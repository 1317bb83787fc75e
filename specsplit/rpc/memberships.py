"""A member's side of Join with all of its coordinators, which are replicas: each of them knows it, and takes sessions for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from specsplit.clock import SystemClock
from specsplit.membership import HandOver, PlanOrder, Register, Roster
from specsplit.observe import fields
from specsplit.ranks.rank import Rank
from specsplit.rpc.coordinators import Coordinators, Dialled
from specsplit.rpc.heard import Callbacks, Heard
from specsplit.rpc.member import Membership
from specsplit.rpc.standing import Sources, Standing
from specsplit.values import Adapter, Load, ModelInfo, Plan, SpeculationReport, TraceChanges

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 2.0
"""Time between two looks at what a name stands for."""


@dataclass(eq=False, slots=True)
class _Running:
    """One membership, and what runs it."""

    membership: Membership
    task: asyncio.Task[None]


class Memberships:
    """Keeps one member joined to every coordinator that there is for as long as `run` runs.

    `load`, `prefixes` and `weights_version`, and `plan`, `speculation` and `adapters` if they are given, are asked before reports; without
    `adapters` they are those of `register`. The others are called on the event loop as directives arrive, of any coordinator; see `Heard`.
    `on_plan` and `on_tracing` get all that now differs from the member's own settings, at every join too.
    A `rank` of a group says here where it stands, hears of waves, and learns when every coordinator of its knows that it leaves.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        register: Register,
        load: Callable[[], Load],
        *,
        plan: Callable[[], Plan] | None = None,
        speculation: Callable[[], SpeculationReport] | None = None,
        prefixes: Callable[[], tuple[int, ...]] = tuple,
        weights_version: Callable[[], int] = int,
        adapters: Callable[[], tuple[Adapter, ...]] | None = None,
        rank: Rank | None = None,
        on_roster: Callable[[Roster], None] | None = None,
        on_plan: Callable[[PlanOrder], None] | None = None,
        on_tracing: Callable[[TraceChanges], None] | None = None,
        on_hand_over: Callable[[HandOver], None] | None = None,
        on_start_wave: Callable[[int], None] | None = None,
        on_drain: Callable[[], None] | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """To be made on the event loop."""
        grouped = None if rank is None or rank.alone else rank
        self._coordinators = coordinators
        own = register.role.adapters if isinstance(register.role, ModelInfo) else ()
        sources = Sources(load, plan, speculation, prefixes, weights_version, adapters or (lambda: own))
        self._standing = Standing(register, sources, grouped, SystemClock())
        callbacks = Callbacks(on_roster, on_plan, on_tracing, on_hand_over, on_start_wave, on_drain)
        self._heard = Heard(callbacks, grouped)
        self._look_every_s = look_every_s
        self._running: dict[str, _Running] = {}
        """By host:port of the coordinator."""
        self._joined = asyncio.Event()
        self._dismissed = False
        """True if a coordinator that has vanished told it to leave."""
        if grouped is not None:
            grouped.excused = self._excused
            grouped.on_report = partial(asyncio.get_running_loop().call_soon_threadsafe, self._tell)

    @property
    def joined(self) -> bool:
        """True while registered anywhere."""
        return self._joined.is_set()

    @property
    def dismissed(self) -> bool:
        """True once a coordinator has told it to leave, as it does all ranks of a group of which one drains."""
        return self._dismissed or any(each.dismissed for each in self._memberships)

    async def wait_joined(self) -> None:
        """Return once registered anywhere."""
        await self._joined.wait()

    def report_lost(self, drafter: str) -> None:
        """Tell every coordinator, at once, that the drafter with this member id cannot be reached."""
        self._standing.lose(drafter)
        self._tell()

    def report_now(self) -> None:
        """Tell every coordinator, at once, how things stand."""
        self._standing.renew()
        self._tell()

    def report_draining(self) -> None:
        """Tell every coordinator, at once, that no new sessions are taken; reports go on until `run` is cancelled."""
        self._standing.draining = True
        self._tell()

    async def run(self) -> None:
        """Stay joined to every coordinator, those that appear later too, until cancelled."""
        try:
            self._look(await self._coordinators.look())
            while self._coordinators.may_change:
                await asyncio.sleep(self._look_every_s)
                self._look(await self._coordinators.look())
            await asyncio.Event().wait()
        finally:
            await self._end()

    @property
    def _memberships(self) -> list[Membership]:
        return [each.membership for each in tuple(self._running.values())]  # other threads ask too

    def _look(self, found: Mapping[str, Dialled]) -> None:
        """Join those that have appeared, and let go of those that are gone once their streams are over."""
        for address in found.keys() - self._running.keys():
            self._join(address, found[address])
        for address, running in [*self._running.items()]:
            running.membership.vanished = address not in found

    def _join(self, address: str, dialled: Dialled) -> None:
        membership = Membership(address, dialled, self._standing, self._heard, self._on_change)
        task = asyncio.create_task(membership.run())
        self._running[address] = _Running(membership, task)
        task.add_done_callback(partial(self._over, address))

    def _over(self, address: str, task: asyncio.Task[None]) -> None:
        """The coordinator has vanished, unless the member itself leaves."""
        if task.cancelled():
            return
        self._dismissed |= self._running.pop(address).membership.dismissed
        self._heard.forget(address)
        _log.info("a coordinator is gone, as its name says", extra=fields(coordinator=address))

    def _on_change(self) -> None:
        joined = {name: each.membership for name, each in self._running.items() if each.membership.joined}
        taking = tuple(name for name, membership in joined.items() if not membership.draining)
        self._standing.joined = taking or tuple(joined)
        (self._joined.set if joined else self._joined.clear)()

    def _excused(self) -> bool:
        """True if every coordinator that may place sessions on it knows that it leaves."""
        return all(each.dismissed for each in self._memberships if each.joined)

    def _tell(self) -> None:
        for each in self._memberships:
            each.tell()

    async def _end(self) -> None:
        tasks = [each.task for each in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

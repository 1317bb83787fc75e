"""A drafter's or verifier's side of Join: register, report, obey, and come back after a break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import grpc

from specsplit.clock import SystemClock
from specsplit.errors import SpecsplitError, Unavailable, Unsupported
from specsplit.membership import (
    Directive,
    Drain,
    Draining,
    HandOver,
    Heartbeat,
    PlanOrder,
    Register,
    Registered,
    Report,
    Roster,
    StartWave,
    TracingOrder,
    WaveReport,
)
from specsplit.ranks.rank import Rank
from specsplit.rpc.catalogue import from_rpc_error, is_task_cancelled
from specsplit.rpc.retry import Retry
from specsplit.settings import MemberSettings
from specsplit.v1 import cluster_pb2_grpc
from specsplit.values import Load, Plan, SpeculationReport, TraceChanges
from specsplit.wire.cluster import directive_from_wire, report_to_wire
from specsplit.wire.limits import MAX_MEMBERS

if TYPE_CHECKING:
    from specsplit.v1 import cluster_pb2

    _Call = grpc.aio.StreamStreamCall[cluster_pb2.JoinRequest, cluster_pb2.JoinResponse]

_log = logging.getLogger(__name__)

LOST_S = 5.0
"""For so long the loss of a drafter is news: as long as one cools down at the coordinator."""


def member_id_of(settings: MemberSettings, service: str, address: str) -> str:
    """The member's name: as set, or the service and its address, which no other live member shares."""
    return settings.member_id or f"{service}-{address}"


@dataclass(frozen=True, slots=True)
class _Orders:
    """The callbacks for what the coordinator says; None for what does not concern this member."""

    roster: Callable[[Roster], None] | None
    plan: Callable[[PlanOrder], None] | None
    tracing: Callable[[TraceChanges], None] | None
    hand_over: Callable[[HandOver], None] | None
    start_wave: Callable[[int], None] | None
    drain: Callable[[], None] | None

    def carry_out(self, directive: Roster | PlanOrder | TracingOrder | HandOver | StartWave | Drain) -> None:
        """Call the callback for this directive, if there is one."""
        match directive:
            case Roster() if self.roster is not None:
                self.roster(directive)
            case PlanOrder() if self.plan is not None:
                self.plan(directive)
            case TracingOrder() if self.tracing is not None:
                self.tracing(directive.changes)
            case HandOver() if self.hand_over is not None:
                self.hand_over(directive)
            case StartWave() if self.start_wave is not None:
                self.start_wave(directive.number)
            case Drain() if self.drain is not None:
                self.drain()
            case _:
                pass


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where to ask for what the member reports; None where there is nothing to say."""

    load: Callable[[], Load]
    plan: Callable[[], Plan] | None
    speculation: Callable[[], SpeculationReport] | None
    rank: Rank | None
    prefixes: Callable[[], tuple[int, ...]]
    weights_version: Callable[[], int]

    def heartbeat(self, lost: Sequence[str]) -> Heartbeat:
        """How the member fares, and which drafters it lost."""
        plan = None if self.plan is None else self.plan()
        speculation = None if self.speculation is None else self.speculation()
        return Heartbeat(self.load(), tuple(lost), plan, speculation, self.prefixes(), self.weights_version())

    def standing(self) -> WaveReport | None:
        """Where it stands as a rank of a group."""
        return None if self.rank is None else self.rank.report


class Membership:
    """Keeps one member in the cluster for as long as `run` runs.

    `load`, `prefixes` and `weights_version`, and `plan` and `speculation` if they are given, are asked before every report. The others are
    called on the event loop as directives arrive.
    `on_plan` and `on_tracing` get all that now differs from the member's own settings, at every join too.
    A `rank` of a group says here where it stands, hears of waves, and learns when the coordinator knows that it leaves.
    """

    def __init__(
        self,
        dialled: Callable[[], grpc.aio.Channel],
        register: Register,
        load: Callable[[], Load],
        *,
        plan: Callable[[], Plan] | None = None,
        speculation: Callable[[], SpeculationReport] | None = None,
        prefixes: Callable[[], tuple[int, ...]] = tuple,
        rank: Rank | None = None,
        weights_version: Callable[[], int] = int,
        on_roster: Callable[[Roster], None] | None = None,
        on_plan: Callable[[PlanOrder], None] | None = None,
        on_tracing: Callable[[TraceChanges], None] | None = None,
        on_hand_over: Callable[[HandOver], None] | None = None,
        on_start_wave: Callable[[int], None] | None = None,
        on_drain: Callable[[], None] | None = None,
    ) -> None:
        """To be made on the event loop.

        `dialled` makes a channel to the coordinator; every call has its own, so that changed certificates count from the next one on.
        """
        grouped = None if rank is None or rank.alone else rank
        self._dialled = dialled
        self._register = register if grouped is None else replace(register, group=grouped.group)
        self._sources = _Sources(load, plan, speculation, grouped, prefixes, weights_version)
        self._orders = _Orders(on_roster, on_plan, on_tracing, on_hand_over, on_start_wave, on_drain)
        self.dismissed = False
        """True once the coordinator has told it to leave, as it does all ranks of a group of which one drains."""
        self._joined = asyncio.Event()
        self._news = asyncio.Event()
        self._clock = SystemClock()
        self._lost: dict[str, float] = {}
        """Drafters that were lost lately, by member id, and when."""
        self._draining = False
        self._retry = Retry(self._clock)
        self._failure: Exception | None = None
        """What kept the present call from making a report."""
        if grouped is not None:
            grouped.excused = lambda: self.dismissed or not self.joined
            grouped.on_report = partial(asyncio.get_running_loop().call_soon_threadsafe, self._news.set)

    @property
    def joined(self) -> bool:
        """True while registered."""
        return self._joined.is_set()

    async def wait_joined(self) -> None:
        """Return once registered."""
        await self._joined.wait()

    def report_lost(self, drafter: str) -> None:
        """Tell the coordinator, at once, that the drafter with this member id cannot be reached."""
        self._lost[drafter] = self._clock.now()
        self._news.set()

    def report_draining(self) -> None:
        """Tell the coordinator, at once, that no new sessions are taken; reports go on until `run` is cancelled."""
        self._draining = True
        self._news.set()

    async def run(self) -> None:
        """Stay in the cluster, redialling after every break, whatever broke it, until cancelled."""
        while True:
            retry_s = await self._join()
            self._joined.clear()
            await asyncio.sleep(retry_s)

    async def _join(self) -> float:
        """Be a member for as long as one Join call lasts; the seconds until the next may be made."""
        try:
            await self._join_once()
        except SpecsplitError as error:
            return self._retry.failed(error)
        except Exception as error:  # noqa: BLE001 (the edge of a task: a member does not leave the cluster for a bug of its own)
            return self._retry.failed(error, "an unexpected error: ")

    async def _join_once(self) -> NoReturn:
        """One Join call, from registration to its end. Raises what ended it."""
        self._failure = None
        registered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        async with self._dialled() as channel:
            call = cluster_pb2_grpc.ClusterServiceStub(channel).Join(self._reports(registered, over))
            try:
                await self._talk(call, registered)
            finally:  # grpc.aio leaves the reports of a call that the coordinator ended waiting for the next
                over.set()
                self._news.set()
        raise Unavailable("coordinator: it ended the membership")

    async def _talk(self, call: _Call, registered: asyncio.Future[float]) -> None:
        """Obey until the call ends. Raises what ended it, if it is anything."""
        try:
            async for response in call:
                self._hear(response, registered)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "coordinator") from error
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            # grpc.aio cancels a call whose requests cannot be made, and says no more than that.
            raise self._failure or Unavailable("coordinator: the call was cancelled on this side") from None
        finally:
            call.cancel()
            registered.cancel()

    async def _reports(
        self, registered: asyncio.Future[float], over: asyncio.Event
    ) -> AsyncIterator[cluster_pb2.JoinRequest]:
        try:
            async for report in self._news_of(registered, over):
                yield report_to_wire(report)
        except Exception as error:
            self._failure = error
            raise

    async def _news_of(self, registered: asyncio.Future[float], over: asyncio.Event) -> AsyncIterator[Report]:
        """What there is to say on one call, until that is over."""
        yield self._register
        interval_s = await registered
        sent_draining, sent_wave, sent_lost = False, None, dict[str, float]()
        while not over.is_set():
            self._news.clear()
            if self._draining and not sent_draining:
                sent_draining = True
                yield Draining()
            if (wave := self._sources.standing()) is not None and wave != sent_wave:
                sent_wave = wave
                yield wave
            lost = self._unsent(sent_lost)
            yield self._sources.heartbeat([*lost])
            sent_lost = {drafter: at for drafter, at in (sent_lost | lost).items() if drafter in self._lost}
            self._retry.stays()
            await self._pause(interval_s)

    def _unsent(self, sent: Mapping[str, float]) -> dict[str, float]:
        """The lost drafters of which a call has yet to tell. Each call tells of all: nobody knows which last words of one were heard."""
        now = self._clock.now()
        self._lost = {drafter: at for drafter, at in self._lost.items() if now - at < LOST_S}
        news = (loss for loss in self._lost.items() if sent.get(loss[0]) != loss[1])
        return dict(islice(news, MAX_MEMBERS))

    async def _pause(self, interval_s: float) -> None:
        try:
            async with asyncio.timeout(interval_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _hear(self, response: cluster_pb2.JoinResponse, registered: asyncio.Future[float]) -> None:
        """Obey, unless it is a directive of a newer coordinator that this version does not know."""
        try:
            directive = directive_from_wire(response)
        except Unsupported as error:
            _log.warning("passed over: %s", error)
        else:
            self._obey(directive, registered)

    def _obey(self, directive: Directive, registered: asyncio.Future[float]) -> None:
        if isinstance(directive, Registered):
            self._enter(directive.heartbeat_interval_ms / 1000, registered)
        else:
            self._heed(directive)
            self._orders.carry_out(directive)

    def _heed(self, directive: Directive) -> None:
        """Take in what a rank of a group has to know before its engine does."""
        match directive:
            case StartWave() if self._sources.rank is not None:
                self._sources.rank.hears(directive.number)
            case Drain():
                self.dismissed = True
            case _:
                pass

    def _enter(self, interval_s: float, registered: asyncio.Future[float]) -> None:
        if registered.done():
            return
        registered.set_result(interval_s)
        self._joined.set()
        self._retry.entered(member_id=self._register.member_id, address=self._register.address)

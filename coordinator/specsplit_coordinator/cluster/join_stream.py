"""The Join stream of one member: its reports come in, directives go out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import (
    AdaptersReport,
    CoordinatorDraining,
    Directive,
    Drain,
    Draining,
    Heartbeat,
    PlanOrder,
    Register,
    Report,
    StartWave,
    TracingOrder,
    WaveReport,
)
from specsplit.observe import fields
from specsplit.values import Control, ModelInfo
from specsplit_coordinator.cluster.rosters import Rosters
from specsplit_coordinator.members.member_state import MemberState
from specsplit_coordinator.members.orders import Orders
from specsplit_coordinator.members.registry import Registry

_log = logging.getLogger(__name__)
LEAVING = "the coordinator is leaving; it may come back"


async def registration(reports: AsyncIterator[Report], within_s: float) -> Register:
    """Read the registration, which must come first. Raises InvalidRequest for any other report, and if none comes within `within_s`:
    streams that have not registered are not counted towards any limit.
    """
    try:
        async with asyncio.timeout(within_s):
            first = await anext(reports, None)
    except TimeoutError:
        raise InvalidRequest(
            "report", f"none came in {within_s:g} s; the first message of a member must be register"
        ) from None
    if not isinstance(first, Register):
        raise InvalidRequest("report", "the first message of a member must be register")
    return first


class JoinStream:
    """Serves one registered member until its stream ends."""

    def __init__(
        self, registry: Registry, rosters: Rosters, orders: Orders, member: MemberState, reports: AsyncIterator[Report]
    ) -> None:
        self._registry = registry
        self._rosters = rosters
        self._orders = orders
        self._member = member
        self._changed = asyncio.Event()
        self._dismissed = self._draining = False
        self._reader = asyncio.create_task(self._read(reports))
        self._reader.add_done_callback(lambda _: self._changed.set())
        self._unsubscribe: list[Callable[[], object]] = [orders.subscribe(self._changed.set)]
        if member.is_verifier:
            self._unsubscribe.append(rosters.subscribe(member, self._changed.set))
        if member.group is not None:
            self._unsubscribe.append(member.group.subscribe(self._changed.set))
        member.on_lost.append(self._changed.set)
        self._unsubscribe.append(partial(member.on_lost.remove, self._changed.set))

    async def directives(self) -> AsyncIterator[Directive]:
        """Yield what the member should know, and again whatever changes, until it leaves. Raises Unavailable if it is lost or dismissed."""
        sent: dict[type[Directive], Directive] = {}
        while not self._reader.done():
            if self._member.lost_because is not None:
                raise Unavailable(f"member {self._member.member_id} was taken for lost: {self._member.lost_because}")
            if self._dismissed:
                raise Unavailable(LEAVING)
            self._changed.clear()
            for directive in self._current():
                if sent.get(type(directive)) != directive:
                    sent[type(directive)] = directive
                    yield directive
            while self._member.hand_overs:
                yield self._member.hand_overs.popleft()
            await self._changed.wait()
        self._reader.result()

    def _current(self) -> Iterator[Directive]:
        """Yield the directives that hold for the member now."""
        if self._draining:
            yield CoordinatorDraining()
        if self._member.group is not None and self._member.group.wave:
            yield StartWave(self._member.group.wave)
        if self._member.group is not None and self._member.group.leaving:
            yield Drain()  # also to the rank that began it, which waits for this before it leaves
        if isinstance(self._member.who.role, ModelInfo):
            yield self._rosters.latest(self._member)
            yield PlanOrder(self._orders.plan, self._control(), self._orders.plan_ms)
        yield TracingOrder(self._orders.tracing, self._orders.tracing_ms)

    def _control(self) -> Control:
        """The controller to tell the member of; a verifier of an older build that does not have it keeps its own."""
        control = self._orders.control
        return control if self._member.knows(control) else Control()

    def drain(self) -> None:
        """Tell the member that the coordinator takes no more requests."""
        self._draining = True
        self._changed.set()

    def dismiss(self) -> None:
        """End the stream from the coordinator's side."""
        self._dismissed = True
        self._changed.set()

    def close(self, why: str) -> None:
        """Note that the stream is over. A second call does nothing, since the member may be back on another stream by then."""
        if not self._unsubscribe:
            return
        self._reader.cancel()
        while self._unsubscribe:
            self._unsubscribe.pop()()
        if self._member.lost_because is None:
            _log.info("member left", extra=fields(member_id=self._member.member_id, why=why))
        self._registry.on_stream_ended(self._member, why)

    async def _read(self, reports: AsyncIterator[Report]) -> None:
        async for report in reports:
            match report:
                case Heartbeat():
                    self._registry.on_heartbeat(self._member, report)
                case WaveReport():
                    self._registry.on_wave_report(self._member, report)
                case AdaptersReport():
                    self._registry.on_adapters(self._member, report)
                case Draining():
                    self._registry.drain(self._member)
                case Register():
                    raise InvalidRequest("register", f"member {self._member.member_id} is registered already")

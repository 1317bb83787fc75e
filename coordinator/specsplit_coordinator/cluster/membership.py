"""One live Join stream: reports in, directives out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from specsplit.errors import InvalidRequest, Unavailable
from specsplit.membership import (
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
    """Who comes. Raises InvalidRequest for anything else, and for nothing in so many seconds: nobody counts who is not in yet."""
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


class Membership:
    """One member for as long as its stream lasts."""

    def __init__(
        self, registry: Registry, rosters: Rosters, orders: Orders, member: MemberState, reports: AsyncIterator[Report]
    ) -> None:
        self._registry = registry
        self._rosters = rosters
        self._orders = orders
        self._member = member
        self._news = asyncio.Event()
        self._dismissed = False
        self._reader = asyncio.create_task(self._read(reports))
        self._reader.add_done_callback(lambda _: self._news.set())
        self._unsubscribe: list[Callable[[], object]] = [orders.subscribe(self._news.set)]
        if member.is_verifier:
            self._unsubscribe.append(rosters.subscribe(member, self._news.set))
        if member.group is not None:
            self._unsubscribe.append(member.group.subscribe(self._news.set))
        member.on_lost.append(self._news.set)
        self._unsubscribe.append(partial(member.on_lost.remove, self._news.set))

    async def directives(self) -> AsyncIterator[Directive]:
        """What it should know, and whenever that changes, until it leaves. Raises Unavailable once it is lost or dismissed."""
        told: dict[type[Directive], Directive] = {}
        while not self._reader.done():
            if self._member.lost_because is not None:
                raise Unavailable(f"member {self._member.member_id} was taken for lost: {self._member.lost_because}")
            if self._dismissed:
                raise Unavailable(LEAVING)
            self._news.clear()
            for directive in self._present():
                if told.get(type(directive)) != directive:
                    told[type(directive)] = directive
                    yield directive
            while self._member.hand_overs:
                yield self._member.hand_overs.popleft()
            await self._news.wait()
        self._reader.result()

    def _present(self) -> Iterator[Directive]:
        """Yield what the member should know now."""
        if self._member.group is not None and self._member.group.wave:
            yield StartWave(self._member.group.wave)
        if (
            self._member.group is not None and self._member.group.leaving
        ):  # to the one that drains too: it is heard, and may go
            yield Drain()
        if isinstance(self._member.who.role, ModelInfo):
            yield self._rosters.told(self._member)
            yield PlanOrder(self._orders.plan, self._control())
        yield TracingOrder(self._orders.tracing)

    def _control(self) -> Control:
        """What the member can be told of who is to decide; one of an older build keeps its own controller."""
        control = self._orders.control
        return control if self._member.knows(control) else Control()

    def dismiss(self) -> None:
        """End the stream from this side."""
        self._dismissed = True
        self._news.set()

    def close(self, why: str) -> None:
        """The stream is over. A second call does nothing: the member may be back, on another stream."""
        if not self._unsubscribe:
            return
        self._reader.cancel()
        while self._unsubscribe:
            self._unsubscribe.pop()()
        if self._member.lost_because is None:
            _log.info("member left", extra=fields(member_id=self._member.member_id, why=why))
        self._registry.part(self._member, why)

    async def _read(self, reports: AsyncIterator[Report]) -> None:
        async for report in reports:
            match report:
                case Heartbeat():
                    self._registry.hear(self._member, report)
                case WaveReport():
                    self._registry.hear_wave(self._member, report)
                case Draining():
                    self._registry.drain(self._member)
                case Register():
                    raise InvalidRequest("register", f"member {self._member.member_id} is registered already")

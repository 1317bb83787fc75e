"""A member's side of one Join stream: register, report, obey, and come back after a break."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NoReturn

import grpc

from specsplit.clock import SystemClock
from specsplit.errors import SpecsplitError, Unavailable, Unsupported
from specsplit.membership import CoordinatorDraining, Directive, Drain, Draining, Registered, Report
from specsplit.rpc.catalogue import from_rpc_error, is_task_cancelled
from specsplit.rpc.coordinators import Dialled
from specsplit.rpc.heard import Heard
from specsplit.rpc.retry import Retry
from specsplit.rpc.standing import Standing
from specsplit.settings import MemberSettings
from specsplit.v1 import cluster_pb2_grpc
from specsplit.wire.cluster import directive_from_wire, report_to_wire

if TYPE_CHECKING:
    from specsplit.v1 import cluster_pb2

    _Call = grpc.aio.StreamStreamCall[cluster_pb2.JoinRequest, cluster_pb2.JoinResponse]

_log = logging.getLogger(__name__)


def member_id_of(settings: MemberSettings, service: str, address: str) -> str:
    """The member's name: as set, or the service and its address, which no other live member shares."""
    return settings.member_id or f"{service}-{address}"


class Membership:
    """Keeps one member joined to one coordinator for as long as `run` runs; see `Memberships`, which makes it."""

    def __init__(
        self,
        coordinator: str,
        dialled: Dialled,
        standing: Standing,
        heard: Heard,
        on_change: Callable[[], object],
    ) -> None:
        """To be made on the event loop. `coordinator`: its host:port. `on_change` is called when `joined` changes."""
        self.dismissed = False
        """True once this coordinator has told it to leave, as it does all ranks of a group of which one drains."""
        self.joined = False
        """True while registered."""
        self.draining = False
        """True once the coordinator has said that it takes no more requests."""
        self._coordinator = coordinator
        self._dialled = dialled
        self._standing = standing
        self._heard = heard
        self._on_change = on_change
        self._news = asyncio.Event()
        self._retry = Retry(SystemClock())
        self.vanished = False
        """True if the coordinator is no longer where it was: once its stream is over it is not dialled again. It may be draining."""
        self._failure: Exception | None = None
        """What kept the present call from making a report."""

    def tell(self) -> None:
        """There is news, which the coordinator is told at once."""
        self._news.set()

    async def run(self) -> None:
        """Stay joined, redialling after every break, whatever broke it, until cancelled or the coordinator has vanished."""
        while not self.vanished:
            retry_s = await self._join()
            self._leave()
            await asyncio.sleep(retry_s)

    def _leave(self) -> None:
        if self.joined:
            self.joined = False
            self._heard.leaves(self._coordinator)
            self._on_change()

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
        standing = self._standing
        sent_adapters = standing.adapters
        yield standing.register
        interval_s = await registered
        sent_draining, sent_wave, sent_lost = False, None, dict[str, float]()
        while not over.is_set():
            self._news.clear()
            if standing.draining and not sent_draining:
                sent_draining = True
                yield Draining()
            if (wave := standing.wave()) is not None and wave != sent_wave:
                sent_wave = wave
                yield wave
            if (adapters := standing.adapters) is not None and adapters != sent_adapters:
                sent_adapters = adapters
                yield adapters
            lost = standing.unsent(sent_lost)
            yield standing.heartbeat([*lost], interval_s, self._coordinator)
            sent_lost = standing.remembered(sent_lost | lost)
            self._retry.stays()
            await self._pause(interval_s)

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
        if isinstance(directive, CoordinatorDraining):
            self.draining = True
            self._on_change()
        self.dismissed |= isinstance(directive, Drain)
        self._heard.take(self._coordinator, directive)

    def _enter(self, interval_s: float, registered: asyncio.Future[float]) -> None:
        if registered.done():
            return
        registered.set_result(interval_s)
        self.joined, self.draining = True, False
        self._on_change()
        who = self._standing.register
        self._retry.entered(member_id=who.member_id, address=who.address, coordinator=self._coordinator)

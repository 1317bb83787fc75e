"""The life of a service's process, the same for coordinator, verifier and drafter: listen, load, join, serve, drain, leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Generic, Protocol, TypeVar

from specsplit.build import build
from specsplit.host import host_of
from specsplit.membership import Register, Role
from specsplit.observe import announce, set_up
from specsplit.observe.exposition import expose
from specsplit.observe.metrics import Metrics
from specsplit.ranks.environment import ALONE, RankEnvironment
from specsplit.rpc.channel import check_reachable, check_shown
from specsplit.rpc.coordinators import Coordinators
from specsplit.rpc.descriptors import raise_limit
from specsplit.rpc.loop import ServiceLoop
from specsplit.rpc.member import member_id_of
from specsplit.rpc.memberships import Memberships
from specsplit.rpc.server import Server
from specsplit.settings import EngineSettings, MemberSettings, ServiceSettings
from specsplit.settings.addresses import Addresses
from specsplit.values import Adaptive, ModelInfo

_log = logging.getLogger(__name__)


class Backend(Protocol):
    """What stands behind a service's server once it is loaded."""

    failed: asyncio.Event
    """Set when it can serve no more; the process leaves then, with status 1."""

    async def drained(self) -> None:
        """Return once the running sessions are over. Cancelled when nobody waits for them any longer."""
        ...

    async def close(self) -> None:
        """Free what it holds. Called once, when the server has stopped."""
        ...


B = TypeVar("B", bound=Backend)
S = TypeVar("S", bound=ServiceSettings)


class Service(Generic[B]):
    """One process of a cluster. To be made on the event loop that it lives on; then `start`, then `serve` or `stop`."""

    def __init__(
        self,
        settings: ServiceSettings,
        server: Server,
        metrics: Metrics,
        load: Callable[[], Awaitable[B]],
        join: Callable[[B, Coordinators], Memberships] | None = None,
        environment: RankEnvironment = ALONE,
    ) -> None:
        """`load` makes the backend while calls are answered UNAVAILABLE; `join` makes the member that it is of a cluster.

        `environment`: which rank of a group it is.
        """
        self.server = server
        self.metrics_address = ""
        """host:port of the metrics as bound; empty if nobody can scrape them."""
        self._settings = settings
        self._metrics = metrics
        self._load = load
        self._join = join
        self._environment = environment
        self._backend: B
        self._open = AsyncExitStack()
        """What has to be closed at the end."""

    async def run(self) -> int:
        """Start, and serve until SIGTERM. Returns the exit status."""
        await self.start(signals=True)
        return await self.serve()

    async def start(self, *, signals: bool = False) -> str:
        """Listen, load and take calls; return host:port as bound. Leaves nothing open if it raises.

        Raises InvalidRequest for an address that cannot be bound, and what loading raises. `signals` as in `Server.start`.
        """
        self._check_dialling()
        try:
            address = await self.server.start(signals=signals)
            await self._expose()
            self._backend = await self._load()
        except BaseException:
            await self.stop()
            raise
        self._open.push_async_callback(self._backend.close)
        self.server.ready()
        return address

    def _check_dialling(self) -> None:
        """Raise InvalidRequest now for what would keep it from every peer for ever."""
        settings = self._settings
        check_shown(settings)
        if isinstance(settings, MemberSettings) and settings.coordinator:
            for address in Addresses.read("coordinator", settings.coordinator).dialled:
                check_reachable("coordinator", address, settings)

    async def serve(self, *, signals: bool = True) -> int:
        """After `start`: serve until SIGTERM or `leave`, then drain. Returns the exit status: 1 if the backend failed, else its rank's."""
        leaving = asyncio.create_task(self._leave_if_failed())
        try:
            async with self._membership() as membership:
                await self.server.run(lambda: self._drain(membership), signals=signals)
        except BaseException:
            await self.server.stop()  # no call is to reach a backend that is closed
            raise
        finally:
            leaving.cancel()
            await self._open.aclose()
        return 1 if self._backend.failed.is_set() else self._status(membership)

    def leave(self) -> None:
        """Begin to drain, as SIGTERM does; asked a second time, stop without waiting."""
        self.server.leave()

    async def stop(self) -> None:
        """End every call at once."""
        await self.server.stop()
        await self._open.aclose()

    async def _expose(self) -> None:
        exposed = ExitStack()
        self.metrics_address = exposed.enter_context(expose(self._metrics, self._settings.metrics_listen))
        self._open.push_async_callback(asyncio.to_thread, exposed.close)  # a scrape that is served waits for this loop

    @asynccontextmanager
    async def _membership(self) -> AsyncGenerator[Memberships | None]:
        """The backend is a member of the cluster inside, if there is one to join."""
        settings = self._settings
        if self._join is None or not isinstance(settings, MemberSettings) or not settings.coordinator:
            yield None
            return
        membership = self._join(self._backend, Coordinators(settings.coordinator, settings))
        joined = asyncio.create_task(membership.run())
        try:
            yield membership
        finally:
            joined.cancel()
            await asyncio.wait({joined})

    async def _drain(self, membership: Memberships | None) -> None:
        if membership is not None:
            membership.report_draining()
        await self._backend.drained()

    def _status(self, membership: Memberships | None) -> int:
        """The exit status of one that has not failed."""
        status = self._environment.status(dismissed=membership is not None and membership.dismissed)
        if status:
            _log.info("leaving with status %d, so that torchrun starts this rank and its group again", status)
        return status

    async def _leave_if_failed(self) -> None:
        await self._backend.failed.wait()
        self.server.give_up()


def registration(settings: EngineSettings, service: str, server: Server, role: Role) -> Register:
    """What a member of a cluster says of itself when it joins; `service` is "verifier" or "drafter"."""
    address = server.address
    controllers = tuple(Adaptive) if isinstance(role, ModelInfo) else ()
    member_id = member_id_of(settings, service, address)
    return Register(member_id, address, role, settings.max_sessions, controllers, build=build(), host=host_of(settings))


def run_service(service: str, settings: S, make: Callable[[S], Service[B]]) -> int:
    """Run a service in this process until it is told to leave; the exit status. Raises SpecsplitError if it cannot start."""
    set_up(service, settings.log_level, settings.log_format)
    announce(service, settings)
    raise_limit()

    async def run() -> int:
        return await make(settings).run()

    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        return runner.run(run())

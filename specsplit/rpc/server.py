"""A gRPC server as every specsplit service has it: health, reflection, limits, TLS, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MappingProxyType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specsplit.errors import SpecsplitError, Unavailable
from specsplit.identity import CallerRole
from specsplit.observe import Tracing, fields, set_up_tracing
from specsplit.rpc.callers import Callers
from specsplit.rpc.departures import tell_departures
from specsplit.rpc.edge import Edge
from specsplit.rpc.health import Health
from specsplit.rpc.ongoing import OngoingCalls
from specsplit.rpc.port import CLIENTS, EVERYONE, Port
from specsplit.settings import MemberSettings, ServiceSettings

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Phase(Enum):
    """A phase in the life of a server."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


class Server:
    """Life: `start` (listens, NOT_SERVING); add servicers to `grpc`; `ready` (SERVING); `run` (until SIGTERM, then drains)."""

    def __init__(
        self,
        settings: ServiceSettings,
        service: str,
        *,
        services: Sequence[str],
        session_methods: Sequence[str] = (),
        members_listen: str = "",
        adapter_listens: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`service` is "verifier" and the like; `services` are full gRPC names; `session_methods` are refused while draining.

        `members_listen` is host:port of a second port, for members and operators, if it is given: the first is for clients alone then.
        `adapter_listens` is host:port of ports for clients alone by the name of what is served there (`adapters`).
        Raises Unavailable if spans are wanted and OpenTelemetry is not installed, InvalidRequest if a roles or tokens file is no good.
        """
        self._settings = settings
        self._service = service
        self._session_methods = frozenset(session_methods)
        self.phase = Phase.LOADING
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._asked = False
        self._health = Health(services)
        self.tracing = set_up_tracing(service, settings)
        """The spans of this service; `stop` sends the last of them."""
        tell_departures()
        port = self._opener(Callers(settings, service))
        first = port("listen", settings.listen, CLIENTS if members_listen else EVERYONE)
        self._ports = [first, *([port("members_listen", members_listen, EVERYONE)] if members_listen else [])]
        self.adapters: Mapping[str, Port] = {
            name: port("adapter_listen", listen, CLIENTS) for name, listen in adapter_listens.items()
        }
        """The ports of adapters, by their names. Add servicers to each, any time before `ready`."""
        names = [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        for port in self._all_ports:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, port.grpc)  # pyright: ignore[reportUnknownMemberType]
            reflection.enable_server_reflection(names, port.grpc)

    def _opener(self, callers: Callers) -> Callable[[str, str, frozenset[CallerRole]], Port]:
        """Makes a port of the setting that says where it listens, that address, and the roles of its callers."""
        ongoing = OngoingCalls(callers)

        def port(field: str, listen: str, roles: frozenset[CallerRole]) -> Port:
            lasts = partial(ongoing.lasts, roles)
            edge = Edge(self._service, self.refusal, partial(callers.admit, port=roles), lasts)
            return Port(field, listen, self._settings, [*_tracers(self.tracing), edge])

        return port

    @property
    def _all_ports(self) -> list[Port]:
        return [*self._ports, *self.adapters.values()]

    @property
    def grpc(self) -> grpc.aio.Server:
        """Add servicers here, any time before `ready`."""
        return self._ports[0].grpc

    @property
    def members(self) -> grpc.aio.Server:
        """Add what members and operators call here: the port of their own, or the only one."""
        return self._ports[-1].grpc

    @property
    def bound(self) -> str:
        """host:port as bound."""
        return self._ports[0].bound

    @property
    def members_bound(self) -> str:
        """host:port as bound of the port for members."""
        return self._ports[-1].bound

    @property
    def address(self) -> str:
        """host:port at which others reach this server."""
        settings = self._settings
        return settings.advertise if isinstance(settings, MemberSettings) and settings.advertise else self.bound

    async def start(self, *, signals: bool = False) -> str:
        """Listen; say so on stdout, in a line for each port; return host:port. Calls are answered UNAVAILABLE until `ready`.

        With `signals`, SIGTERM, SIGINT and SIGHUP end the process with status 0 until `ready`: nothing runs yet that could be drained.

        Raises InvalidRequest if an address cannot be bound or a TLS file is no good.
        """
        for number in _heeded() if signals else ():
            asyncio.get_running_loop().add_signal_handler(number, partial(self._leave_while_loading, number))
        for port in self._all_ports:
            await port.start()
        for port in self._ports[1:]:
            sys.stdout.write(f"specsplit {self._service} listening for members on {port.bound}\n")
        for name, port in self.adapters.items():
            sys.stdout.write(f"specsplit {self._service} listening for adapter {name} on {port.bound}\n")
        sys.stdout.write(f"specsplit {self._service} listening on {self.bound}\n")
        sys.stdout.flush()
        return self.bound

    def ready(self) -> None:
        """Take calls from now on; everything is loaded."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.SERVING
            self._health.set_serving(True)
            _log.info("serving", extra=fields(address=self.address))

    def _leave_while_loading(self, number: signal.Signals) -> None:
        if self.phase is not Phase.LOADING:
            self._on_signal(number)
            return
        _log.info("told to leave while still loading")
        logging.shutdown()
        os._exit(0)  # a model being loaded on another thread would keep the process alive for as long as that takes

    def leave(self) -> None:
        """Begin to drain, as SIGTERM does; asked a second time, stop without waiting. That others began it (`drain`) is no asking."""
        (self._hurry if self._asked else self._leave).set()
        self._asked = True

    def _on_signal(self, number: signal.Signals) -> None:
        """Begin to drain. A terminal that closes sends SIGHUP more than once, so a second one is no asking to hurry."""
        (self.drain if number is signal.SIGHUP else self.leave)()

    def drain(self) -> None:
        """Begin to drain, unless that has begun."""
        self._leave.set()

    def give_up(self) -> None:
        """Begin to drain; if that has begun, stop without waiting: what it waits for will not come."""
        (self._hurry if self._leave.is_set() else self._leave).set()

    async def run(self, drain: Callable[[], Awaitable[None]], *, signals: bool = True) -> int:
        """Serve until SIGTERM, SIGINT, SIGHUP or `leave`; then drain, stop, and return the exit status 0.

        `drain` returns when the running sessions are over; it is given `drain_s`. `signals` False leaves the process's handlers alone.
        """
        loop = asyncio.get_running_loop()
        handled = _heeded() if signals else ()
        for number in handled:
            loop.add_signal_handler(number, partial(self._on_signal, number))
        try:
            await self._leave.wait()
            await self._drain(drain)
            await self.stop()
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
        return 0

    async def stop(self) -> None:
        """End every call, release the port, and send the spans that are left."""
        self.phase = Phase.DRAINING
        self._health.set_serving(False)
        self._health.close()
        await asyncio.gather(*(port.stop(0.2) for port in self._all_ports))
        await asyncio.to_thread(self.tracing.close)

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        self.phase = Phase.DRAINING
        self._health.set_serving(False)
        _log.info("draining")
        draining = asyncio.ensure_future(drain())
        hurry = asyncio.ensure_future(self._hurry.wait())
        done, _ = await asyncio.wait(
            {draining, hurry}, timeout=self._settings.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        if draining in done:
            await draining
            return
        _log.warning("sessions were still running; they end now")
        draining.cancel()
        await asyncio.wait({draining})

    def refusal(self, method: str) -> SpecsplitError | None:
        """Why a method is not served now; None: it is."""
        if self.phase is Phase.LOADING:
            return Unavailable(f"the {self._service} is still loading; try again soon")
        if self.phase is Phase.DRAINING and method in self._session_methods:
            return Unavailable(
                f"the {self._service} is draining and takes no new sessions; use another, or try again later"
            )
        return None


def _heeded() -> Sequence[signal.Signals]:
    """The signals that begin a drain. SIGHUP does not where the process was started to ignore it, as nohup does."""
    return [each for each in _SIGNALS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def _tracers(tracing: Tracing) -> list[grpc.aio.ServerInterceptor]:
    """What makes spans of calls: nothing at all if there are none to make."""
    if tracing.sink is None:
        return []
    from specsplit.rpc.traced import server_interceptor  # noqa: PLC0415 (off means off: nothing of it is loaded)

    return [server_interceptor(tracing)]

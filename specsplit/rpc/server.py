"""A gRPC server as every specsplit service has it: health, reflection, limits, TLS, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specsplit.errors import InvalidRequest, SpecsplitError, Unavailable
from specsplit.observe import Tracing, fields, set_up_tracing
from specsplit.rpc.channel import read_pem
from specsplit.rpc.edge import Edge
from specsplit.rpc.health import Health
from specsplit.rpc.options import server_options
from specsplit.settings import MemberSettings, ServiceSettings
from specsplit.settings.address import split

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    ) -> None:
        """`service` is "verifier" and the like; `services` are full gRPC names; `session_methods` are refused while draining.

        Raises Unavailable if spans are wanted and OpenTelemetry is not installed.
        """
        self._settings = settings
        self._service = service
        self._session_methods = frozenset(session_methods)
        self._phase = Phase.LOADING
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._asked = False
        self._port = 0
        self._health = Health(services)
        self.tracing = set_up_tracing(service, settings)
        """The spans of this service; `stop` sends the last of them."""
        edges = [*_tracers(self.tracing), Edge(service, self._gate)]
        self.grpc = grpc.aio.server(interceptors=edges, options=server_options(settings))
        """Add servicers here, any time before `ready`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)  # pyright: ignore[reportUnknownMemberType]
        names = [*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.grpc)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def bound(self) -> str:
        """host:port as bound."""
        return f"{self._settings.listen.rpartition(':')[0]}:{self._port}"

    @property
    def address(self) -> str:
        """host:port at which others reach this server."""
        settings = self._settings
        return settings.advertise if isinstance(settings, MemberSettings) and settings.advertise else self.bound

    async def start(self, *, signals: bool = False) -> str:
        """Listen; say so on stdout, in one line; return host:port. Calls are answered UNAVAILABLE until `ready`.

        With `signals`, SIGTERM and SIGINT end the process with status 0 until `ready`: nothing runs yet that could be drained.

        Raises InvalidRequest if the address cannot be bound or a TLS file cannot be read.
        """
        self._port = self._bind()
        for number in _SIGNALS if signals else ():
            asyncio.get_running_loop().add_signal_handler(number, self._leave_while_loading)
        await self.grpc.start()
        sys.stdout.write(f"specsplit {self._service} listening on {self.bound}\n")
        sys.stdout.flush()
        return self.bound

    def ready(self) -> None:
        """Take calls from now on; everything is loaded."""
        if self._phase is Phase.LOADING:
            self._phase = Phase.SERVING
            self._health.set_serving(True)
            _log.info("serving", extra=fields(address=self.address))

    def _leave_while_loading(self) -> None:
        if self._phase is not Phase.LOADING:
            self.leave()
            return
        _log.info("told to leave while still loading")
        logging.shutdown()
        os._exit(0)  # a model being loaded on another thread would keep the process alive for as long as that takes

    def leave(self) -> None:
        """Begin to drain, as SIGTERM does; asked a second time, stop without waiting. That others began it (`drain`) is no asking."""
        (self._hurry if self._asked else self._leave).set()
        self._asked = True

    def drain(self) -> None:
        """Begin to drain, unless that has begun."""
        self._leave.set()

    def give_up(self) -> None:
        """Begin to drain; if that has begun, stop without waiting: what it waits for will not come."""
        (self._hurry if self._leave.is_set() else self._leave).set()

    async def run(self, drain: Callable[[], Awaitable[None]], *, signals: bool = True) -> int:
        """Serve until SIGTERM, SIGINT or `leave`; then drain, stop, and return the exit status 0.

        `drain` returns when the running sessions are over; it is given `drain_s`. `signals` False leaves the process's handlers alone.
        """
        loop = asyncio.get_running_loop()
        handled = _SIGNALS if signals else ()
        for number in handled:
            loop.add_signal_handler(number, self.leave)
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
        self._phase = Phase.DRAINING
        self._health.set_serving(False)
        self._health.close()
        await self.grpc.stop(0.2)
        await asyncio.to_thread(self.tracing.close)

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        self._phase = Phase.DRAINING
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

    def _gate(self, method: str) -> SpecsplitError | None:
        if self._phase is Phase.LOADING:
            return Unavailable(f"the {self._service} is still loading; try again soon")
        if self._phase is Phase.DRAINING and method in self._session_methods:
            return Unavailable(
                f"the {self._service} is draining and takes no new sessions; use another, or try again later"
            )
        return None

    def _bind(self) -> int:
        listen = self._settings.listen
        split("listen", listen)
        try:
            if self._settings.tls_cert is not None and self._settings.tls_key is not None:
                key = read_pem("tls_key", self._settings.tls_key)
                chain = read_pem("tls_cert", self._settings.tls_cert)
                return self.grpc.add_secure_port(listen, grpc.ssl_server_credentials([(key, chain)]))
            return self.grpc.add_insecure_port(listen)
        except RuntimeError as error:
            raise InvalidRequest(
                "listen", f"cannot bind {listen}; is the address this machine's, and the port free?"
            ) from error


def _tracers(tracing: Tracing) -> list[grpc.aio.ServerInterceptor]:
    """What makes spans of calls: nothing at all if there are none to make."""
    if tracing.sink is None:
        return []
    from specsplit.rpc.traced import server_interceptor  # noqa: PLC0415 (off means off: nothing of it is loaded)

    return [server_interceptor(tracing)]

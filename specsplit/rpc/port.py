"""One address at which a server listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

from specsplit.errors import InvalidRequest
from specsplit.identity import CallerRole
from specsplit.rpc.certificates import server_credentials
from specsplit.rpc.options import server_options
from specsplit.settings import ServiceSettings
from specsplit.settings.address import split

EVERYONE: Final = frozenset(CallerRole)
"""The roles of callers of a port that is for all of them."""
CLIENTS: Final = frozenset({CallerRole.CLIENT})
"""The roles of callers of a port that is for programs alone."""


class Port:
    """A gRPC server of its own, with the credentials that the settings say."""

    def __init__(
        self, field: str, listen: str, settings: ServiceSettings, interceptors: Sequence[grpc.aio.ServerInterceptor]
    ) -> None:
        """`field` is the setting that says where it listens."""
        self._field = field
        self._listen = listen
        self._settings = settings
        self._number = 0
        self.grpc = grpc.aio.server(interceptors=interceptors, options=server_options(settings))
        """The gRPC server, to which servicers are added."""

    @property
    def bound(self) -> str:
        """host:port as bound."""
        return f"{self._listen.rpartition(':')[0]}:{self._number}"

    async def start(self) -> None:
        """Listen. Raises InvalidRequest if the address cannot be bound or a TLS file is no good."""
        host, port = split(self._field, self._listen)
        listen = (
            f"[::]:{port}" if host == "*" else self._listen
        )  # which gRPC takes for IPv4 alone where there is no IPv6
        credentials = server_credentials(self._settings)
        try:
            if credentials is None:
                self._number = self.grpc.add_insecure_port(listen)
            else:
                self._number = self.grpc.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise InvalidRequest(
                self._field, f"cannot bind {self._listen}; is the address this machine's, and the port free?"
            ) from error
        await self.grpc.start()

    async def stop(self, grace_s: float) -> None:
        """End every call, after so many seconds at most, and release the port."""
        await self.grpc.stop(grace_s)

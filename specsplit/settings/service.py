"""Settings that every server has, those of every server that answers requests, and those of every member of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from specsplit.errors import InvalidRequest
from specsplit.settings import address
from specsplit.settings.addresses import Addresses
from specsplit.settings.transport import TransportSettings
from specsplit.settings.units import Bytes, Count, Duration, Seconds
from specsplit.values import TraceScope
from specsplit.values.checks import MAX_NAME


class ServiceSettings(TransportSettings):
    """Where a server listens, and how it leaves."""

    listen: str = "127.0.0.1:0"
    """host:port to bind; port 0 takes any free one, and the host [::] every interface, of IPv6 and IPv4."""
    tls_client_ca: Path | None = None
    """PEM file with the authority of callers' certificates; a caller without one is not let in. Unset: no certificate is asked for."""
    roles_file: Path | None = None
    """TOML file with the roles of callers by the subject name of their certificate, as in "verifier.example" = ["member"]."""
    tokens_file: Path | None = None
    """TOML file with callers, their roles and the SHA-256 of their tokens (`specsplit tokens` writes it). Unset: no token is asked for."""
    anonymous_clients: bool = False
    """A caller that shows no token is a client, where tokens are asked for."""
    drain_s: Seconds = Field(default=30.0, ge=0)
    """Time that running sessions get to finish after SIGTERM."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe record that is written."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """How a record is written: as a line of JSON or as one to read; auto is text on a terminal and JSON elsewhere."""
    metrics_listen: str = ""
    """host:port to serve Prometheus metrics at, as plain HTTP under /metrics; port 0 takes any free one. Empty: nowhere."""
    trace_endpoint: str = ""
    """host:port of an OTLP receiver (gRPC) for spans; spoken to over TLS if tls_ca is set and it is on another machine. Empty: no spans."""
    trace_level: int = Field(default=1, ge=0, le=3)
    """What is traced: 0 nothing, 1 the stages of a request, 2 its steps too, 3 the parts of a step too; can be changed while running."""
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests that are traced, of those whose caller has not decided that already; can be changed while running."""
    trace_modules: str = ""
    """Services that make spans, with commas between: coordinator,verifier,drafter. Empty: all; can be changed while running."""

    @property
    def secured(self) -> bool:
        """True if the server speaks TLS."""
        return self.tls_cert is not None

    @property
    def trace_scope(self) -> TraceScope:
        """What is traced until somebody changes it."""
        modules = tuple(name.strip() for name in self.trace_modules.split(",") if name.strip())
        return TraceScope(self.trace_level, self.trace_ratio, modules)

    @model_validator(mode="after")
    def _check_telemetry(self) -> Self:
        _ = self.trace_scope
        if self.trace_endpoint:
            host, _ = address.split("trace_endpoint", self.trace_endpoint)
            if self.tls_ca is None and not self.insecure and not address.is_loopback(host):
                raise InvalidRequest(
                    "trace_endpoint",
                    f"{self.trace_endpoint} is on another machine and would be sent spans in the clear; "
                    "give tls_ca (--tls-ca), or allow it with insecure (--insecure)",
                )
        self._check_plain("metrics_listen", self.metrics_listen, "metrics are")
        return self

    def _check_plain(self, field: str, listen: str, what: str) -> None:
        """Raise InvalidRequest for an address without TLS that others reach, unless that is allowed."""
        if not listen:
            return
        host, _ = address.split(field, listen)
        if not self.insecure and not address.is_loopback(host):
            raise InvalidRequest(
                field,
                f"{listen} can be reached from other machines, and {what} served without TLS; "
                "listen on this machine alone, or allow it with insecure (--insecure)",
            )

    @model_validator(mode="after")
    def _check_listen(self) -> Self:
        self._check_secured("listen", self.listen)
        return self

    def _check_secured(self, field: str, listen: str) -> None:
        """Raise InvalidRequest for an address that others reach without TLS, unless that is allowed."""
        host, _ = address.split(field, listen)
        if not self.secured and not self.insecure and not address.is_loopback(host):
            raise InvalidRequest(
                field,
                f"{listen} can be reached from other machines and there is no TLS; "
                "give tls_cert and tls_key (--tls-cert, --tls-key), or allow it with insecure (--insecure)",
            )

    @model_validator(mode="after")
    def _check_callers(self) -> Self:
        if (self.tls_client_ca is None) != (self.roles_file is None):
            raise InvalidRequest("tls_client_ca", "and roles_file go together; give both or neither", "roles_file")
        if self.tls_client_ca is not None and not self.secured:
            raise InvalidRequest(
                "tls_client_ca",
                "asks callers for certificates, which takes TLS; give tls_cert and tls_key (--tls-cert, --tls-key) too",
            )
        if self.anonymous_clients and (self.tokens_file is None or self.roles_file is not None):
            raise InvalidRequest(
                "anonymous_clients", "goes with tokens_file, and without tls_client_ca", "tls_client_ca"
            )
        return self


class AnswerSettings(ServiceSettings):
    """What is kept of answers to requests that their callers do not read."""

    max_unread_bytes: Bytes = Field(default=2**20, ge=1024)
    """Bytes of an answer that are kept for a caller that does not read; with more, its request ends with RESOURCE_EXHAUSTED.
    What is larger as it comes at once may be unread too, up to as much again or 1 MiB beside the latest."""
    unread_s: Seconds = Field(default=30.0, gt=0)
    """A caller that takes nothing of its answer for this long has its call ended."""
    gather_ms: Duration = Field(default=5.0, ge=0)
    """Longest time that tokens of an answer wait for more, to leave as one message, while the process is behind with its work; the first
    and the end of an answer do not wait. 0: none do, but for what comes while another message is on its way."""


class MemberSettings(ServiceSettings):
    """How a drafter or verifier joins a cluster."""

    coordinator: str = ""
    """host:port of the coordinator to join; of several, which share the members, all with commas between, or dns:///name:port for every
    address of a name, looked up again while it runs. Empty: stand alone."""
    member_id: str = Field(default="", max_length=MAX_NAME)
    """Name in the cluster, unique there. Empty: made of the service and its address."""
    advertise: str = ""
    """host:port at which others reach this member. Empty: the bound address. An IPv6 host may stand without brackets, as a pod's address
    does in Kubernetes: what is behind the last colon is the port."""
    machine: str = Field(default="", max_length=MAX_NAME)
    """Name of the machine, the same for all members that compute on its cores: a drafter draws less ahead where it takes cores from its
    verifier. Empty: found out; every virtual machine counts as a machine."""
    max_sessions: Count = Field(default=16, ge=1)
    """Sessions taken at once, at most."""

    @field_validator("advertise")
    @classmethod
    def _bracket_advertise(cls, value: str) -> str:
        return address.bracketed(value)

    @model_validator(mode="after")
    def _check_advertise(self) -> Self:
        host, _ = address.split("listen", self.listen)
        if self.coordinator:
            Addresses.read("coordinator", self.coordinator)
        if self.advertise:
            address.check_dialable("advertise", self.advertise)
        elif self.coordinator and address.is_wildcard(host):
            raise InvalidRequest(
                "advertise",
                f"is required to join a cluster when listening on {host}: others cannot dial that",
                "listen",
                "coordinator",
            )
        return self

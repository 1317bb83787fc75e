"""The settings of a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specsplit.errors import InvalidRequest, quoted
from specsplit.settings import address
from specsplit.settings.quota_store import check_store, without_password
from specsplit.settings.service import AnswerSettings
from specsplit.settings.units import Count, Milliseconds, Seconds
from specsplit.values.checks import MAX_NAME, check_name

MOST_NAMED = 32
"""Clients that metrics name, at most: each is a few series."""


class CoordinatorSettings(AnswerSettings):
    """The settings of a coordinator."""

    model_config = SettingsConfigDict(env_prefix="SPECSPLIT_COORDINATOR_")

    listen: str = "127.0.0.1:50050"
    """host:port to bind; port 0 takes any free one, and the host [::] every interface, of IPv6 and IPv4."""
    members_listen: str = ""
    """host:port of another port, for members and operators; the one of listen is for clients alone then. Empty: one port for all."""
    adapter_listen: str = ""
    """NAME=host:port of a port at which the engine protocol serves the target with that LoRA adapter, as a model of that name, so that
    gateways can offer it; several with commas between. Empty: none, and gateways offer the target as it is."""
    model: Path
    """Folder with the target's tokenizer and chat template; its weights are not read."""
    max_queue: Count = Field(default=64, ge=0)
    """Requests that may wait for a verifier, one for n choices as n; more are refused with a hint when to retry. Let it be some times max_n
    (16 if unset): choices of a request of which one has begun keep their places, so one request could fill a smaller queue for long."""
    heartbeat_ms: Milliseconds = Field(default=500, ge=10)
    """Time between the reports of a member."""
    lost_after_ms: Milliseconds = Field(default=2000, ge=20)
    """A member silent for this long is lost."""
    failover_s: Seconds = Field(default=30.0, ge=0)
    """How long a session that has lost its verifier waits while no verifier takes sessions; then its request ends with UNAVAILABLE."""
    retry_after_s: Seconds = Field(default=1.0, ge=0)
    """The hint given with a refusal for want of room."""
    default_max_tokens: Count | None = Field(default=None, ge=1)
    """Tokens that a request may generate if it does not give max_tokens. Unset: as many as context and KV pool hold."""
    max_max_tokens: Count | None = Field(default=None, ge=1)
    """Largest max_tokens of a request; more is refused, and a request without max_tokens gets at most this. Unset: what fits."""
    max_n: int | None = Field(default=None, ge=1, le=16)
    """Largest n of a request; more is refused. Unset: 16."""
    max_num_steps: int | None = Field(default=None, ge=0, le=64)
    """Largest num_steps in a request's plan; more is refused. Unset: 64."""
    max_topk: int | None = Field(default=None, ge=1, le=64)
    """Largest topk in a request's plan; more is refused. Unset: 64."""
    max_num_draft_tokens: int | None = Field(default=None, ge=1, le=256)
    """Largest num_draft_tokens in a request's plan; more is refused. Unset: 256."""
    max_wait_budget_us: int | None = Field(default=None, ge=0, le=60_000_000)
    """Largest wait_budget_us in a request's plan; more is refused. Unset: 60,000,000."""
    max_priority: int = Field(default=0, ge=0, le=9)
    """Highest priority that a request may ask for; more is refused."""
    client_max_requests: Count | None = Field(default=None, ge=1)
    """Requests of one client that may be on their way at once; here and below one for n choices counts as n, and each of several
    coordinators allows its share, a Nth. Unset: no quota."""
    client_max_queued: Count | None = Field(default=None, ge=0)
    """Requests of one client that may wait for a verifier at once. Unset: no quota."""
    client_tokens_per_minute: Count | None = Field(default=None, ge=1)
    """Tokens of prompts and answers that one client may use in a minute; what has begun is not cut off. Unset: no quota."""
    quota_store: str = ""
    """redis://host:port/number or rediss:// (over TLS) of a Redis or Valkey server that counts clients' quotas for all coordinators; needs
    pip install 'specsplit[quota]'. A password in it shows on a command line; logs leave it out, and `up` hands it on in the
    environment. Empty: each allows its share."""
    quota_store_password_file: Path | None = None
    """File with the password of the store. Unset: none, or the one in quota_store."""
    quota_store_prefix: str = Field(default="specsplit:", max_length=MAX_NAME)
    """What all keys in the store begin with; coordinators of one cluster have the same, and of another cluster another."""
    quota_store_timeout_ms: Milliseconds = Field(default=50, ge=1)
    """Longest time that a request waits for the store. If it does not answer, coordinators allow their shares until it does."""
    metrics_clients: str = ""
    """Clients that have metrics of their own, with commas between, at most 32; all others are counted together. Empty: all are."""
    vllm_metrics: bool = False
    """What vLLM measures too is exposed under its names as well, for dashboards that were made for vLLM (docs/metrics.md)."""
    web_listen: str = ""
    """host:port of a page that shows the cluster at work, texts included, over plain HTTP; port 0 takes any free one. Empty: no page."""

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if self.members_listen:
            self._check_secured("members_listen", self.members_listen)
        elif (
            self.tokens_file is None
            and self.roles_file is None
            and not address.is_loopback(address.split("listen", self.listen)[0])
        ):
            raise InvalidRequest(
                "members_listen",
                f"is required: {self.listen} can be reached from other machines, and whoever reaches it could join as a verifier "
                "and read prompts; give members another port, or ask callers who they are (--tokens-file, or --tls-client-ca and "
                "--roles-file)",
                "listen",
            )
        return self

    @model_validator(mode="after")
    def _check_quota_store(self) -> Self:
        if self.quota_store:
            quotas = (self.client_max_requests, self.client_max_queued, self.client_tokens_per_minute)
            check_store(self.quota_store, in_the_clear=self.insecure)
            if all(quota is None for quota in quotas):
                raise InvalidRequest(
                    "quota_store",
                    "is for quotas, and none is set; set client_max_requests, client_max_queued or client_tokens_per_minute, or leave "
                    "it out",
                )
        elif self.quota_store_password_file is not None:
            raise InvalidRequest("quota_store_password_file", "goes with quota_store, which is not set")
        return self

    def resolved(self) -> dict[str, object]:
        """Every setting with its value, but for the password of a store."""
        return super().resolved() | {"quota_store": without_password(self.quota_store)}

    @property
    def adapter_listens(self) -> Mapping[str, str]:
        """host:port by the name of an adapter. Raises InvalidRequest for what names none, or one twice."""
        listens: dict[str, str] = {}
        for each in self.adapter_listen.split(",") if self.adapter_listen else ():
            name, equals, listen = (part.strip() for part in each.rpartition("="))
            if not equals or not name:
                raise InvalidRequest("adapter_listen", f"has {quoted(each)}, expected NAME=host:port")
            check_name("adapter_listen", name)
            if name in listens:
                raise InvalidRequest("adapter_listen", f"names {name} twice; give it one port")
            listens[name] = listen
        return listens

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        for name, listen in self.adapter_listens.items():
            self._check_secured("adapter_listen", listen)
            if name == self.model.name:
                raise InvalidRequest(
                    "adapter_listen",
                    f"names {name}, which the target is called; give the adapter's folder another name",
                )
        return self

    @property
    def named_clients(self) -> tuple[str, ...]:
        """The clients that have metrics of their own."""
        return tuple(name.strip() for name in self.metrics_clients.split(",") if name.strip())

    @model_validator(mode="after")
    def _check_named_clients(self) -> Self:
        if len(self.named_clients) > MOST_NAMED:
            raise InvalidRequest(
                "metrics_clients", f"names {len(self.named_clients)} clients, expected at most {MOST_NAMED}"
            )
        return self

    @model_validator(mode="after")
    def _check_web(self) -> Self:
        self._check_plain("web_listen", self.web_listen, "the page is")
        return self

    @model_validator(mode="after")
    def _check_max_tokens(self) -> Self:
        default, most = self.default_max_tokens, self.max_max_tokens
        if default is not None and most is not None and default > most:
            raise InvalidRequest(
                "default_max_tokens", f"is {default}, expected at most max_max_tokens = {most}", "max_max_tokens"
            )
        return self

    @model_validator(mode="after")
    def _check_heartbeat(self) -> Self:
        if self.lost_after_ms <= self.heartbeat_ms:
            raise InvalidRequest(
                "lost_after_ms",
                f"is {self.lost_after_ms}, expected more than heartbeat_ms = {self.heartbeat_ms}",
                "heartbeat_ms",
            )
        return self

"""What an engine tells a gateway in front of it: what its model is, and how busy it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specsplit.membership import Member
from specsplit.values import Load, ModelInfo


@dataclass(frozen=True)
class ModelConfig:
    """What the config of a model folder says that no verifier tells."""

    model_type: str = ""
    """The family, as transformers names it; empty: not told."""
    architectures: tuple[str, ...] = ()
    """Names of its classes in transformers."""
    bos_token_id: int = 0
    """The token with which a text begins; 0 also where there is none."""
    pad_token_id: int = 0
    """The token that fills a row; 0 also where there is none."""


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine is. What it cannot tell is 0."""

    running: int = 0
    """Requests being decoded; one for n choices counts as n."""
    waiting: int = 0
    """Requests that wait for a place."""
    max_running: int = 0
    """Requests that may be decoded at once."""
    used_tokens: int = 0
    """Tokens whose KV is held for requests."""
    max_tokens: int = 0
    """Tokens whose KV can be held."""

    @property
    def token_usage(self) -> float:
        """Share of the KV memory that is taken, in [0, 1]."""
        return self.used_tokens / self.max_tokens if self.max_tokens else 0.0

    @property
    def utilization(self) -> float:
        """Share of the places that are taken, in [0, 1]."""
        return min(1.0, self.running / self.max_running) if self.max_running else 0.0


def load_of(load: Load, max_sessions: int) -> EngineLoad:
    """The load of one verifier that takes so many sessions at once."""
    return EngineLoad(
        running=load.sessions - load.waiting,
        waiting=load.waiting,
        max_running=max_sessions,
        used_tokens=(load.total_pages - load.free_pages) * load.page_size,
        max_tokens=load.total_pages * load.page_size,
    )


def engine_load(members: Iterable[Member], running: int, waiting: int) -> EngineLoad:
    """The load of a cluster with these members, whose verifiers decode so many requests while others wait."""
    verifiers = [
        load_of(member.load, member.max_sessions)
        for member in members
        if isinstance(member.role, ModelInfo) and not member.draining
    ]
    return EngineLoad(
        running=running,
        waiting=waiting,
        max_running=sum(each.max_running for each in verifiers),
        used_tokens=sum(each.used_tokens for each in verifiers),
        max_tokens=sum(each.max_tokens for each in verifiers),
    )

"""What a drafter is told."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specsplit.errors import InvalidRequest
from specsplit.settings.engine import EngineSettings
from specsplit.values import DrafterKind


class DrafterSettings(EngineSettings):
    """One drafter."""

    model_config = SettingsConfigDict(env_prefix="SPECSPLIT_DRAFTER_")

    kind: DrafterKind = DrafterKind.STANDALONE
    """What proposes the tokens: standalone (a small model) or ngram (no model)."""
    model: Path | None = None
    """Folder of the draft model, in the Hugging Face layout; required for standalone."""
    max_sessions: int = Field(default=64, ge=1)
    """Sessions taken at once, at most."""
    kv_tokens: int = Field(default=65_536, ge=1)
    """Room in the KV pool, in tokens, all sessions together."""
    expand_width: int = Field(default=64, ge=1)
    """Nodes expanded in one forward at most, all sessions together."""
    children: int = Field(default=16, ge=1)
    """Children kept of every expanded node."""
    expand_survival: float = Field(default=0.002, gt=0, le=1)
    """A node less likely than this to be accepted is not expanded."""
    push_survival: float = Field(default=0.002, gt=0, le=1)
    """A node less likely than this to be accepted is not sent."""
    paced_expansion_base_ms: float = Field(default=0.0, ge=0)
    """Benchmarks only: an expansion lasts at least this long, plus the share of its tokens."""
    paced_expansion_per_token_us: float = Field(default=0.0, ge=0)
    """Benchmarks only: the share of one token."""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.kind is DrafterKind.STANDALONE and self.model is None:
            raise InvalidRequest("model", "is required for a standalone drafter: the folder of the draft model")
        if self.kind is DrafterKind.NGRAM and self.model is not None:
            raise InvalidRequest("model", "an ngram drafter takes no model; leave it out")
        return self
